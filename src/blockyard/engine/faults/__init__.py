"""How a run handles faults: each file is one fault, and is called in one line from the road of a step.

Stops and endings:

    interrupts         signals that request a stop, in the training process and in its data workers
    ending             state, exit code and reason of an attempt, from the error that ended it

Other processes:

    worker_rank        a process that is not the main one fails, and leaves a note of the reason
    peers              all processes stop after the same step; the one that ended the run is named, where this one only
                       lost the connection; one failed and the main one does not notice
    data_workers       too few open files for them; one was stopped (SIGSTOP) and not continued

Components and libraries:

    nan_guard          a loss, a gradient or a weight that is not finite
    causality_probe    a component of another package reads later tokens, or padding
    own_generators     a logger draws from the random generators of the run
    small_maps         a gradient that oneDNN leaves unwritten

A file that answers a library's fault names the release that it was written for, and when it can go: `small_maps`,
`data_workers`, `peers`, `interrupts` and `own_generators`. The others are behaviour of a run, and stay.
"""
