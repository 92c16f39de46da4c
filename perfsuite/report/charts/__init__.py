"""Charts as SVG, and the pie and learning curves of a profile."""
