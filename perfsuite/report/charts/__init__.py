"""Charts of a report as SVG, and the pie of a profile."""
