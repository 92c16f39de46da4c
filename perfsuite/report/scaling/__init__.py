"""How training scales over devices: series, charts, tables."""
