"""How fast is slipring, next to other loaders, on this machine?

Run ``python -m bench --help`` from the repository root, or ``make bench``. See ``docs/benchmarks.md`` for
the workloads, the method and its biases.

=====================  ======================================================================
``workloads/``         one file per workload: its data, batch, targets and bias
``baselines/``         one file per baseline, each with ``batches()``; all in one table
``collate.py``         a collation for baselines that have none
``measure.py``         the loop that consumes a baseline's batches and times it
``child.py``           the process of one baseline
``runner.py``          starts the children in turn, watches over them, collects
``summary.py``         ratios round by round, medians, targets met or not
``decoders.py``        from a JPEG to a crop, in the baselines' ways
``exact.py``           the differences of a decoder from Pillow's result
``libraries.py``       the libraries of a wheel, for another package
``report.py``          tables of a run
``record.py``          a command's result as one JSON file, and its printed tables
``pages.py``           the tables of the benchmark pages, from these files
``chart.py``           the chart, from these files
``photos.py``          makes folders and tar files of JPEGs from real photographs
``machine.py``         the machine and the versions
``workload.py``        the parts of a workload
``memory.py``          the memory of a job's processes, with shared memory counted once
``cpu.py``             the processor time of a job's processes
``decoded.py``         decoded images in one file, as in FFCV's raw mode
=====================  ======================================================================

Every other file is a command, such as ``python -m bench.micro``, that measures one thing; its docstring
states the purpose, the data and the bias.
"""
