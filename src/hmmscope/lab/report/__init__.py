"""From the files of experiments to figures for papers and to one page that needs no network. Reads files only."""
