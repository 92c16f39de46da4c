"""`python -m perfsuite`: the command line where its script is not on the PATH."""

from perfsuite.cli import main

main()
