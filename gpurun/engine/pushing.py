"""Results pushed from the box itself, where a recipe says `collect_to`."""

from gpurun import push
from gpurun.engine import detached
from gpurun.engine.box import Box
from gpurun.engine.context import Context
from gpurun.errors import PhaseFailed
from gpurun.phases import KEEP

INSTALL_S = 600.0
PROVE_S = 120.0
PUSH_S = 600.0


def begin(ctx: Context, box: Box) -> None:
    """Before the launch: the box can push, that is proven, and it goes on by itself.

    PhaseFailed: what is pushed would not arrive; nothing was launched.
    """
    target = ctx.recipe.collect_to
    if target is None:
        return
    known = ctx.secrets()
    credential = f"/dev/shm/{box.attempt.label}.push"
    names = [s.name for s in ctx.recipe.secrets if push.is_credential(s.name)]
    values = [(name, known[name]) for name in names if name in known]
    put = box.shell.run(
        f"umask 077; cat > {credential}", timeout_s=30, stdin=detached.exports(values)
    )
    text = push.script(target, credential, ctx.run.id)
    # Renamed into place: a shell may be reading the one that is there.
    write = f"mkdir -p {KEEP}; cat > {push.SCRIPT}.tmp && mv {push.SCRIPT}.tmp {push.SCRIPT}"
    wrote = box.shell.run(write, timeout_s=30, stdin=text)
    if not (put.ok and wrote.ok):
        raise PhaseFailed(f"the push could not be prepared: {put.tail(1)}{wrote.tail(1)}")
    box.follow("train", push.tools_text(target), INSTALL_S, f"install what pushes to {target}")
    proof = box.shell.run(f"sh {push.SCRIPT} prove", timeout_s=PROVE_S)
    if not proof.ok:
        raise PhaseFailed(
            f"collect_to {target} does not take what the box pushes, training was not launched: "
            f"{proof.tail(3)}"
        )
    launch = detached.launch_text(push.NAME, f"sh {push.SCRIPT} watch")
    if not (launched := box.shell.run(launch, timeout_s=30)).ok:
        raise PhaseFailed(f"the push could not be started: {launched.tail(2)}")


def last_push(ctx: Context, box: Box) -> list[str]:
    """What has not been pushed yet; returns what went wrong."""
    target = ctx.recipe.collect_to
    if target is None:
        return []
    pushed = box.shell.run(f"[ ! -f {push.SCRIPT} ] || sh {push.SCRIPT} once", timeout_s=PUSH_S)
    return [] if pushed.ok else [f"not all was pushed to {target}: {pushed.tail(2)}"]
