"""Measuring a callable, about which it knows nothing but the stages that it enters."""
