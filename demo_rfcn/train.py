"""The training loop: reproducible from (seed, step), interruptible, resumable."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import mxnet as mx
import numpy as np
from tqdm import tqdm

from . import checkpoint, detector, evaluate
from .data import DATASETS, open_dataset
from .data.loader import TrainLoader
from .errors import InputError
from .targets import RPNTargets


class Interrupted(Exception):
    """Training was stopped by a signal after it had written a checkpoint."""


class StopRequest:
    """Turns SIGINT and SIGTERM into a flag, so that a step is never cut in two."""

    def __enter__(self) -> StopRequest:
        self.raised = False
        self._previous = {
            number: signal.signal(number, self._raise) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _raise(self, *_) -> None:
        self.raised = True


def model_config(args: argparse.Namespace) -> detector.ModelConfig:
    """Return the configuration that the arguments ask for."""
    spec = DATASETS[args.dataset]
    return detector.ModelConfig(
        classes=tuple(spec.classes),
        network=args.network,
        head=args.head,
        k=1 if args.head == "global" else args.k,
        class_agnostic=args.class_agnostic,
        anchor_scales=spec.anchor_scales,
        anchor_ratios=spec.anchor_ratios,
    )


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """Return the rate of a step: linear warm-up, then half a cosine down to a hundredth."""
    schedule = mx.lr_scheduler.CosineScheduler(
        max_update=args.steps,
        base_lr=args.lr,
        final_lr=args.lr / 100,
        warmup_steps=min(args.lr_warmup, args.steps - 1),
        warmup_begin_lr=args.lr / 10,
    )
    return schedule(step)


def run(args: argparse.Namespace) -> Path:
    """Train, or go on training, and return the folder of the run.

    `last.ckpt` and `best.ckpt` (highest mAP@.5 on the validation images) are written there, and
    `history.json` beside them. Everything random follows from (seed, step).

    Raises
    ------
    InputError
        Bad input, before any training.
    Interrupted
        A signal came; `last.ckpt` is of the step that had been finished.
    """
    spec = DATASETS[args.dataset]
    folder = Path(args.save_prefix)
    config = model_config(args)
    meta = {"step": 0, "best": None, "history": {"losses": [], "val": []}}
    if args.resume:
        meta = checkpoint.read_meta(Path(args.resume))
        checkpoint.check_config(Path(args.resume), meta["config"], config)
    train_set = open_dataset(args.dataset, args.dataset_root, "train")
    val_set = open_dataset(args.dataset, args.dataset_root, "val")

    loader = TrainLoader(
        train_set,
        args.batch_size,
        spec.short,
        spec.max_size,
        config.stride,
        RPNTargets(config.anchors, config.stride, args.rpn_num_sample, 0.7, 0.3, 0.5),
        args.seed,
    )

    ctx = [mx.cpu()]
    net = detector.build(config, ctx, args.seed)
    graph = detector.TrainGraph(net, rpn_num_sample=args.rpn_num_sample, ohem=args.ohem)
    graph.hybridize(static_alloc=True)
    detect = detector.Detector(net)
    detect.hybridize(static_alloc=True)
    trainer = mx.gluon.Trainer(
        net.collect_params(), "adam", {"learning_rate": args.lr, "wd": args.wd}, kvstore=None
    )
    if args.resume:
        checkpoint.load_parameters(Path(args.resume), net, ctx)
        checkpoint.load_trainer(Path(args.resume), trainer, meta)
    state = {key: meta[key] for key in ("step", "best", "history")}
    state["arguments"] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(args).items()
        if not callable(value)
    }
    _loop(args, graph, detect, trainer, loader, val_set, state, folder, ctx)
    return folder


def _loop(args, graph, detect, trainer, loader, val_set, state, folder, ctx) -> None:
    spec = DATASETS[args.dataset]
    net = graph.net
    first = state["step"]
    pending: list = []
    bar = tqdm(total=args.steps, initial=first, desc="training", unit="step", mininterval=1)
    with StopRequest() as stop, bar:
        for step, batch in zip(range(first, args.steps), loader.batches(first)):
            mx.random.seed((args.seed * 1_000_003 + step) % 2**31)
            trainer.set_learning_rate(learning_rate(args, step))
            with mx.autograd.record():
                losses = graph(*(mx.nd.array(part, ctx=ctx[0]) for part in batch))
                total = mx.nd.add_n(*losses)
            total.backward()
            trainer.step(args.batch_size)
            state["step"] = step + 1
            pending.append(mx.nd.stack(*losses).mean(axis=1))
            bar.update()
            if state["step"] % args.log_interval == 0 or state["step"] == args.steps:
                _log_losses(state, pending, bar)
            if state["step"] % args.val_interval == 0 or state["step"] == args.steps:
                scores = evaluate.evaluate(
                    detect, val_set, spec.short, spec.max_size, ctx[0], args.val_images
                )
                _log_scores(state, scores, bar)
                if state["best"] is None or scores["map50"] >= state["best"]:
                    state["best"] = scores["map50"]
                    checkpoint.save(folder / "best.ckpt", net, trainer, state)
                checkpoint.save(folder / "last.ckpt", net, trainer, state)
                write_json(folder / "history.json", state["history"])
            if stop.raised:
                _log_losses(state, pending, bar)
                checkpoint.save(folder / "last.ckpt", net, trainer, state)
                raise Interrupted(
                    f"stopped after step {state['step']} of {args.steps}; go on with "
                    f"--resume {folder / 'last.ckpt'}"
                )


def _log_losses(state: dict, pending: list, bar: tqdm) -> None:
    """Move the losses of the last steps from the device into the history, as one mean."""
    if not pending:
        return
    means = np.mean([losses.asnumpy() for losses in pending], axis=0)
    pending.clear()
    row = {name: float(v) for name, v in zip(detector.TrainGraph.LOSSES, means)}
    if not np.isfinite(means).all():
        raise InputError(f"train: a loss is not finite at step {state['step']} ({row}); lower --lr")
    state["history"]["losses"].append({"step": state["step"], **row})
    bar.set_postfix(loss=f"{means.sum():.3f}", best=f"{state['best'] or 0:.3f}")


def _log_scores(state: dict, scores: dict, bar: tqdm) -> None:
    row = {"step": state["step"], "map50": scores["map50"], "map75": scores["map75"]}
    state["history"]["val"].append(row)
    bar.write(f"step {row['step']}: mAP@.5 {row['map50']:.3f}, mAP@.75 {row['map75']:.3f}")


def write_json(path: Path, value) -> None:
    """Write JSON beside its place, then move it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(temporary, path)
