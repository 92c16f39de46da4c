"""Reports as files: HTML, Markdown, LaTeX, CSV, and what trackers read."""
