"""R-FCN in Gluon on the operators of `gluon_roi`: training, evaluation, pictures, export."""

import os

# MXNet takes every second core for a hyper-thread and leaves it idle unless it is told how many
# there are. It reads the variable when it is imported, so this stands before any such import.
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
