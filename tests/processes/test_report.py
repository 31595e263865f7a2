"""`trainer report` on runs that go on, lose a task, are stopped, or fail."""

import signal

from tests.processes.trainers import PATIENCE, WITHOUT_EVALUATIONS, Trainer, wait_for_line, wait_until


def test_a_page_is_of_a_run_that_goes_on_and_of_one_that_lost_a_task_and_was_stopped(trainer: Trainer) -> None:
    words = ["--train_steps", "1000000", "--train_dir", "run", "--report_steps", "20", "--save_steps", "200"]
    process = trainer.start("launch", "--ps", "1", "--workers", "1", *words, WITHOUT_EVALUATIONS)
    run = trainer.folder / "run"
    wait_until(lambda: list(run.glob("model.ckpt-*.index")))
    code, output = trainer.run("report", "run")
    assert code == 0, output
    assert '<span class="state running">' in (run / "report.html").read_text()
    assert "needs the exported model" in (run / "report.html").read_text()
    trainer.task("ps").kill()
    wait_for_line(run / "logs" / "worker-0.log", '"restored"')
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    code, output = trainer.run("report", "run")
    assert code == 0, output
    text = (run / "report.html").read_text()
    assert '<span class="state stopped">' in text
    faults = text.partition('id="faults"')[2].partition("</section>")[0]
    assert "started again, start 2" in faults
    assert "lost ps 0" in faults
    assert "restored run/model.ckpt-" in faults


def test_a_page_of_a_failed_run_says_why(trainer: Trainer) -> None:
    code, output = trainer.run("launch", "--strategy=allreduce", "--workers=1", "--train_dir=run", "--model=absent")
    assert code == 2, output
    code, output = trainer.run("report", "run")
    assert code == 0, output
    text = (trainer.folder / "run" / "report.html").read_text()
    assert '<span class="state failed">' in text
    assert "ended with code 2: model=&#x27;absent&#x27;" in text
