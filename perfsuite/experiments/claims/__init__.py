"""Claims about training speed that people repeat, each with an experiment that tests it here."""
