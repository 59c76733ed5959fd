"""The gate on NVFlare: a process that runs none of a job's code speaks to the server.

NVFlare's parent process at the site starts one process for each job, which loads the job's code and
speaks to the server. `launcher` starts `executor` there instead, in a workspace of its own with no
file of the job, and closes the parent's commands that read the site. `trainer` runs the job's own
client in the shard's cell. `install` writes the launcher into a site's startup kit.
"""
