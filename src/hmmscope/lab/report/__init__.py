"""Figures for papers and offline pages, from the files of experiments."""
