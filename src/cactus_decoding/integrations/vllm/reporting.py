"""What a model runner keeps between steps, and where its counts go."""

from __future__ import annotations

from typing import Any

from cactus_decoding.integrations.vllm.metrics import Export, export_of
from cactus_decoding.integrations.vllm.verification import Relaxer

_RELAXER = "_cactus_relaxer"
_EXPORT = "_cactus_export"


def relaxer_of(owner: Any) -> Relaxer:
    """The relaxer of a V1 runner or a V2 sampler, made when first asked for."""
    found = getattr(owner, _RELAXER, None)
    if found is None:
        found = Relaxer()
        setattr(owner, _RELAXER, found)
    assert isinstance(found, Relaxer)
    return found


def report(runner: Any, owner: Any, scheduler_output: Any) -> None:
    """Part with the requests that ended, log their lines, and pass the counts on where it is time to."""
    relaxer = relaxer_of(owner)
    relaxer.finish(scheduler_output.finished_req_ids)
    if not _tells(runner):
        relaxer.ledger.discard()
        return
    idle = scheduler_output.total_num_scheduled_tokens == 0
    if relaxer.ledger.settle(idle) and (export := _export_of(runner)) is not None:
        export.write(relaxer.ledger.total)


def _tells(runner: Any) -> bool:
    """Whether this rank tells of its requests: ranks that share the vocabulary sample the same ones."""
    from vllm.distributed import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank() == 0 or getattr(runner, "batch_sharder", None) is not None


def _export_of(runner: Any) -> Export | None:
    if not hasattr(runner, _EXPORT):
        config = runner.vllm_config
        labels = (str(config.model_config.served_model_name), str(config.parallel_config.data_parallel_index))
        setattr(runner, _EXPORT, export_of(labels))
    export: Export | None = getattr(runner, _EXPORT)
    return export
