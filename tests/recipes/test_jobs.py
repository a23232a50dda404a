"""Celery, RQ, APScheduler, Prefect, cron and Kubernetes: jobs that must not meet, slots that run once, one leader."""

from __future__ import annotations

import re
import shlex
import sqlite3
import sys
import time
from contextlib import closing
from typing import Any

import httpx
import pytest
import yaml

from ..servers.process import free_port
from ..tier import sample
from .conftest import PATIENCE, Recipe

pytestmark = [pytest.mark.server, pytest.mark.slow]


def never_two_at_once(log: str) -> int:
    """How many pairs of `begin KEY …` and `end KEY …` there are; each ends before the next of its key begins."""
    inside: dict[str, str] = {}
    pairs = 0
    for line in log.splitlines():
        what, key, who = line.split()
        if what == "begin":
            assert key not in inside, log
            inside[key] = who
        else:
            assert inside.pop(key) == who, log
            pairs += 1
    return pairs


def test_a_task_of_celery_that_comes_twice_charges_once(recipe: Recipe, redis_url: str) -> None:
    recipe.lay_out("celery")
    recipe.environment |= {"BROKER_URL": f"{redis_url}/1", "DATABASE": str(recipe.folder / "shop.db")}
    with closing(sqlite3.connect(recipe.folder / "shop.db")) as database, database:
        database.execute("CREATE TABLE charges (number INTEGER, token INTEGER)")
    ask = """
import json
from tasks import app, charge, database, fence
db = database(); fence.create(db); db.commit()
results = [charge.delay(7) for _ in range(4)]
print(json.dumps([result.get(timeout=180) for result in results]))
"""
    worker = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "2", "--loglevel", "WARNING"]
    worker += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    recipe.start(*worker, log="worker.log")
    outcomes = yaml.safe_load(recipe.python("-c", ask).splitlines()[-1])
    assert sorted(outcome["again"] for outcome in outcomes) == [False, True, True, True], recipe.read("worker.log")
    assert len({outcome["token"] for outcome in outcomes}) == 4
    with closing(sqlite3.connect(recipe.folder / "shop.db")) as database, database:
        ((number, token),) = database.execute("SELECT number, token FROM charges").fetchall()
    assert (number, token) == (7, min(outcome["token"] for outcome in outcomes))


def test_of_two_beats_one_sends_and_the_other_takes_over(recipe: Recipe, redis_url: str) -> None:
    recipe.lay_out("celery")
    recipe.environment |= {"BROKER_URL": f"{redis_url}/2", "DATABASE": "shop.db"}
    beat = [
        "lockline",
        "lead",
        "beat",
        "--require",
        "server",
        "--",
        sys.executable,
        "-m",
        "celery",
        "-A",
        "tasks",
        "beat",
        "--loglevel",
        "INFO",
    ]
    beats = [recipe.start(*beat, "--schedule", f"beat-{i}.db", log=f"beat-{i}.log") for i in range(2)]

    def sends() -> list[int]:
        return [i for i in range(2) if "Sending due task tick" in recipe.read(f"beat-{i}.log")]

    (first,) = recipe.wait(sends, "beat-0.log", "beat-1.log")
    recipe.wait(
        lambda: recipe.read(f"beat-{first}.log").count("Sending due task tick") >= 3, "beat-0.log", "beat-1.log"
    )
    assert sends() == [first]
    beats[first].terminate()
    beats[first].wait(PATIENCE)
    recipe.wait(lambda: len(sends()) == 2, "beat-0.log", "beat-1.log")


def test_jobs_of_rq_for_one_account_take_turns_over_workers(recipe: Recipe, redis_url: str) -> None:
    recipe.lay_out("rq")
    recipe.python("enqueue.py", REDIS_URL=redis_url)
    words = ["-m", "rq.cli", "worker", "--url", redis_url, "--burst", "--quiet"]
    workers = [recipe.start(sys.executable, *words, log=f"worker-{i}.log") for i in range(2)]
    for worker in workers:
        assert worker.wait(PATIENCE) == 0
    assert never_two_at_once(recipe.read("log.txt")) == 4, recipe.read("worker-0.log") + recipe.read("worker-1.log")


def test_schedulers_on_every_machine_run_each_slot_once(recipe: Recipe) -> None:
    """Takes some 15 s: there have to be two slots, and each is long against what a busy machine is late."""
    # Each machine comes often, and says so.
    recipe.lay_out("apscheduler", {"seconds=every / 4": "seconds=0.5", "level=logging.WARNING": "level=logging.INFO"})
    machines = [f"machine-{i}.log" for i in range(sample(2, 3))]
    every = 10
    began = time.time()
    for log in machines:
        recipe.start(sys.executable, "scheduler.py", log=log, EVERY=str(every))

    def runs() -> int:
        return sum(recipe.read(log).count("refreshed") for log in machines)

    def all_came() -> bool:
        return all(recipe.read(log).count("executed successfully") >= 2 for log in machines)

    recipe.wait(lambda: runs() >= 2 and all_came(), *machines)
    found = runs()
    # A slot begins half a period before its round time.
    slots = int(time.time() / every + 0.5) - int(began / every + 0.5) + 1
    assert found <= slots, "".join(map(recipe.read, machines))


def test_tasks_of_prefect_get_tokens_that_rise(recipe: Recipe) -> None:
    recipe.lay_out("prefect")
    quiet = {"PREFECT_HOME": str(recipe.folder), "PREFECT_LOGGING_LEVEL": "ERROR", "DO_NOT_TRACK": "1"}
    quiet |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180"}
    # What its server does besides, every few seconds, and a flow that is run by hand has no use for.
    for service in ("SCHEDULER", "LATE_RUNS", "CANCELLATION_CLEANUP", "PAUSE_EXPIRATIONS", "FOREMAN", "TRIGGERS"):
        quiet[f"PREFECT_SERVER_SERVICES_{service}_ENABLED"] = "false"
    quiet["PREFECT_UI_ENABLED"] = "false"
    said = recipe.python("flow.py", **quiet)
    (tokens,) = re.findall(r"tokens (.+)", said)
    assert len(set(tokens.split())) >= 2, said


@pytest.mark.usefixtures("one_day")
def test_the_line_in_the_crontab_runs_the_report_once_however_many_machines_have_it(recipe: Recipe) -> None:
    recipe.lay_out("cron")
    report = recipe.folder / "report.sh"
    report.write_text("#!/bin/sh\necho made\n")
    report.chmod(0o755)
    (line,) = recipe.read("crontab").splitlines()
    command = line.split(maxsplit=5)[5]
    said = [recipe.run("sh", "-c", command) for _ in range(2)]
    assert said == ["made\n", ""]
    alone = recipe.start("sh", "-c", command, log="alone.log", LOCKLINE_URL="")
    assert alone.wait(PATIENCE) == 64, "without a server that all share the job is refused"
    unit = re.search(r"^ExecStart=(.*)$", recipe.read("nightly.service"), re.MULTILINE)
    assert unit is not None
    assert recipe.run(*shlex.split(unit[1])) == "", "the timer's job has the same name, and finds it done"


def test_a_service_that_knows_no_server_is_refused_and_does_not_lead_on_every_machine(recipe: Recipe) -> None:
    recipe.lay_out("cron")
    services = {name: recipe.read(name) for name in ("nightly.service", "scheduler.service")}
    for name, unit in services.items():
        script = recipe.folder / f"{name.partition('.')[0]}.sh"
        script.write_text("#!/bin/sh\necho ran\n")
        script.chmod(0o755)
        start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        assert start is not None
        alone = recipe.start(*shlex.split(start[1]), log="alone.log", LOCKLINE_URL="")
        assert alone.wait(PATIENCE) == 64, recipe.read("alone.log")
        assert "WorkingDirectory=/" in unit, "or ./ is the root of the machine"


@pytest.mark.usefixtures("one_day")
def test_the_cron_job_of_kubernetes_runs_its_command_once(recipe: Recipe) -> None:
    recipe.lay_out("kubernetes")
    report = recipe.folder / "report.sh"
    report.write_text("#!/bin/sh\necho made\n")
    report.chmod(0o755)
    job: Any = yaml.safe_load(recipe.read("cronjob.yaml"))
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    command = [word.replace("nightly", "nightly-pods") for word in container["command"]]
    assert [recipe.run(*command) for _ in range(2)] == ["made\n", ""]


def test_one_pod_is_ready_and_the_next_one_is_when_it_is_told_to_stop(recipe: Recipe) -> None:
    # With this ttl nobody waits for the end of the first pod's lease.
    recipe.lay_out(
        "kubernetes", {'client.lead("orders-scheduler", main)': 'client.lead("orders-scheduler", main, ttl=3600)'}
    )
    deployment: Any = yaml.safe_load(recipe.read("deployment.yaml"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "leader.py"]
    path = container["readinessProbe"]["httpGet"]["path"]
    ports = [free_port() for _ in range(2)]
    pods = [recipe.start(sys.executable, "leader.py", log=f"pod-{p}.log", PORT=str(p)) for p in ports]
    with httpx.Client(timeout=PATIENCE, verify=False) as kubelet:

        def is_well(port: int, path: str) -> bool:
            try:
                return kubelet.get(f"http://127.0.0.1:{port}{path}").status_code == 200
            except httpx.TransportError:
                return False

        def ready() -> list[int]:
            return [i for i, port in enumerate(ports) if is_well(port, path)]

        logs = [f"pod-{p}.log" for p in ports]
        (first,) = recipe.wait(ready, *logs)
        other = ports[1 - first]
        recipe.wait(lambda: is_well(other, "/live"), *logs)
        assert ready() == [first]
        pods[first].terminate()
        recipe.wait(lambda: ready() == [1 - first], *logs)
