"""How fast is slipring, next to other loaders, on this machine?

Run ``python -m bench --help`` from the repository root, or ``make bench``. See ``docs/benchmarks.md`` for
the workloads, the method and its biases.

=====================  ======================================================================
``questions/``         one file per question: its data, its batch, its targets, its bias
``rivals/``            one file per rival, each with ``batches()``; all in one table
``collate.py``         what the rivals without a collation of their own share
``measure.py``         the loop that consumes a rival's batches and times it
``child.py``           the process in which one rival lives
``runner.py``          starts the children in turn, watches over them, collects
``summary.py``         ratios round by round, medians, targets met or not
``decoders.py``        from a JPEG to a crop, in the rivals' ways
``exact.py``           how far a way is from Pillow's result
``libraries.py``       a wheel's libraries, lent to another
``report.py``          tables
``chart.py``           the picture
``photos.py``          makes folders of JPEGs, and tar files of them, out of real photographs
``machine.py``         what ran, on what
``question.py``        what a question consists of
``memory.py``          what a job's processes take, what they share counted once
``decoded.py``         decoded pictures in one file, as FFCV's raw mode keeps them
=====================  ======================================================================

Every other file is a command of its own, ``python -m bench.micro``, that answers one question; its docstring
has the question, the data and what the answer leaves out.
"""
