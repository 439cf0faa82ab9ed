"""How often Vast may be asked, by endpoint and key, as its documentation has it; and what may be
asked again after a failure.  What is not listed here is neither paced nor repeated.
"""

from gpurun.provider import Endpoint

ONE = r"/api/v0/instances/\d+/"
JOBS = "/api/v0/commands/schedule_job/"
ENDPOINTS = (
    Endpoint("PUT", r"/api/v0/asks/\d+/", interval_s=4.5),
    Endpoint("DELETE", ONE, interval_s=3.0, repeat=True),
    Endpoint("DELETE", "/api/v0/instances/", interval_s=3.0),
    Endpoint("GET", ONE, interval_s=2.0, repeat=True),
    Endpoint("GET", "/api/v1/instances/", interval_s=1.0, repeat=True),
    Endpoint("POST", "/api/v0/bundles/", interval_s=6.0, burst=10, repeat=True),
    Endpoint("GET", "/api/v0/charges/", interval_s=1.0, repeat=True),
    Endpoint("GET", "/api/v0/ssh/", interval_s=1.0, repeat=True),
    Endpoint("POST", "/api/v0/ssh/", interval_s=1.0),
    Endpoint("GET", "/api/v0/users/current/", repeat=True),
    Endpoint("GET", "/api/v0/gpu_names/unique/", repeat=True),
    Endpoint("GET", JOBS, repeat=True),
    Endpoint("DELETE", JOBS + r"\d+/", repeat=True),
)
