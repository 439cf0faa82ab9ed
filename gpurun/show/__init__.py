"""What people read: money, durations, tables, the plan, the status, the bill.

Plain text.  Colour only on a terminal and without NO_COLOR; an id is never cut.
"""

from gpurun.show.doctor import doctor_lines
from gpurun.show.orphans import orphans_lines
from gpurun.show.plan import plan_document, plan_text
from gpurun.show.report import report_text
from gpurun.show.spending import report_csv, since_csv, since_text
from gpurun.show.status import progress_line, run_text, said_of_itself, status_text
from gpurun.show.text import Look, cut, duration, local_time, money, size, table

__all__ = [
    "Look",
    "cut",
    "doctor_lines",
    "duration",
    "local_time",
    "money",
    "orphans_lines",
    "plan_document",
    "plan_text",
    "progress_line",
    "report_csv",
    "report_text",
    "run_text",
    "said_of_itself",
    "since_csv",
    "since_text",
    "size",
    "status_text",
    "table",
]
