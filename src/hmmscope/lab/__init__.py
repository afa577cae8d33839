"""The laboratory over the library: experiments, evidence, studies, sweeps, pages and the command line."""
