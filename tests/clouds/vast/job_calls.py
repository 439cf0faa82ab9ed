"""The calls about scheduled jobs, and what a job does when it fires."""

import re
from dataclasses import replace
from datetime import datetime

from tests.clouds.vast.account import Key, refuse
from tests.clouds.vast.schedule import Job, read
from tests.clouds.vast.world import VastWorld
from tests.clouds.wire import Call, Reply

SCHEDULER = Key(9_000_001, frozenset())  # what the audit log shows as the key of a job's request
ONE = re.compile(r"^/api/v0/instances/(?:(reboot|recycle|bid_price)/)?(\d+)/$")


def show_jobs(world: VastWorld, call: Call) -> Reply:
    key = world.authorize(call, "instance_read")
    return Reply([] if key.other_account else [job.row() for job in world.jobs.values()])


def add_job(world: VastWorld, call: Call) -> Reply:
    key = world.authorize(call, "instance_write")
    world.account.note(call, key, world.now)
    if refused := world.knobs.hit("schedule_refused"):
        raise refuse(refused["status"], "not_allowed", "This request cannot be scheduled.")
    try:
        job = read(world.account.new_id(), call.body)
    except ValueError as problem:
        raise refuse(400, "invalid_args", str(problem)) from problem
    for other in world.jobs.values():
        if (other.endpoint, other.method) == (job.endpoint, job.method):
            msg = "A scheduled job exists for this endpoint."
            raise refuse(422, "job_exists", msg, scheduled_job_id=other.id)
    world.jobs[job.id] = job
    _plan(world, job, world.now)
    return Reply({"success": True, "scheduled_job_id": job.id})


def update_job(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "instance_write")
    old = _job(world, call)
    try:
        new = read(old.id, old.row() | {"min_of_the_hour": None} | dict(call.body))
    except ValueError as problem:
        raise refuse(400, "invalid_args", str(problem)) from problem
    old.removed = True
    world.jobs[old.id] = replace(new, updated=True)  # it was seen never to fire again
    return Reply({"success": True, "scheduled_job_id": old.id})


def remove_job(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "instance_write")
    job = _job(world, call)
    job.removed = True
    del world.jobs[job.id]
    return Reply({"success": True})


def _job(world: VastWorld, call: Call) -> Job:
    job = world.jobs.get(int(call.params["id"]))
    if job is None:
        raise refuse(404, "no_such_job", f"No scheduled job {call.params['id']}.")
    return job


def _plan(world: VastWorld, job: Job, now: datetime) -> None:
    at = job.next_after(now)
    if at is not None:
        world.timeline.at(at, lambda: _fire(world, job))


def _fire(world: VastWorld, job: Job) -> None:
    if job.removed:
        return
    _plan(world, job, world.now)
    down = world.knobs.get("down")
    if down and down["scheduler_too"]:
        return
    found = ONE.match(job.endpoint)
    instance = found and world.find(found[2])
    if not found or not instance:
        return
    call = Call(job.method, job.endpoint, {}, None, {}, job.body, "scheduler")  # type: ignore[arg-type]
    world.account.note(call, SCHEDULER, world.now)
    if (job.method, found[1]) == ("DELETE", None):
        world.destroy(instance)
    elif (job.method, found[1]) == ("PUT", "reboot"):
        world.restart(instance)
    elif (job.method, found[1]) == ("PUT", "recycle"):
        world.recycle(instance)
    elif (job.method, found[1], job.body.get("state")) == ("PUT", None, "stopped"):
        world.stop(instance, "stopped")
