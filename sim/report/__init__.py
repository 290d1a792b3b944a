"""A study as a picture: one self-contained page per report, its numbers as CSV, its figures as PNG.

`study.py` reads a study, the modules named by a subject (`curve`, `costs`, `ledger`, `timeline`, `latent`) turn it
into plain rows, `figures.py` draws them as Vega-Lite, `page.py` puts all into one file, `build.py` is the way in.
"""
