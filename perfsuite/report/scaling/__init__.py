"""How training scales over devices: series, cost model, estimates."""
