"""`normkit bench`: normkit timed in turn with what is installed.

    _plan        what is measured: groups of contenders that take turns
    _timing      one group: seconds a call, round by round
    _numpy, _torch, _jax
                 the contenders of a framework
    _memory      peak and saved bytes of a call
    _worker      the process that measures one framework with one number of threads
    _run         the workers in a row, and their result as data
    _ratios      the ratios in a result
    _bars        what normkit promises to reach, as data
    _report      a result as text for the terminal
    _chart       the ratios as a picture
    _command     the command

A framework's module has ``contenders(group)``, functions that make what is timed, by name;
``kernel_runs(name, group)``; and ``set_threads(count)``.

A framework fixes its number of threads when it starts, so each (framework, threads) has a process
of its own; nothing else of normkit imports a framework here.
"""
