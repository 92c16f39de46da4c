"""Groups of ranks: started fresh for each cell, watched and ended. Runs in the controller."""
