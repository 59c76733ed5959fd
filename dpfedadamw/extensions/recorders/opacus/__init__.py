"""Records a training loop that uses Opacus, so that the auditor can judge it.

    recorder = Recorder("runs/my-loop", delta=1e-5)
    recorder.attach(optimizer, data_loader, model)   # after make_private, before training
    recorder.close()                                 # after training

``dpfedadamw sign``, ``audit`` and ``report`` then take the folder as any other run. Nothing of the
loop is changed: methods of the optimiser are wrapped for as long as it is recorded, and the data
loader's sampler is listened to. What is noted is private and stays in ``evidence/``.
"""

from __future__ import annotations

from dpfedadamw.extensions.recorders.opacus.declaration import RecorderError
from dpfedadamw.extensions.recorders.opacus.recorder import Recorder

__all__ = ["Recorder", "RecorderError"]
