"""The operators' kernels: functions of Arrow tables, with the same results as the DataFrame algebra."""
