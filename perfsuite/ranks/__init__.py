"""Groups of ranks on one machine: started fresh for each cell, watched and ended.

All of it runs in the controller, beside pytest or a verb, except where a module's first lines name
the rank or the forkserver. A rank loads `perfsuite.worker`, and torch with it, by name.
"""
