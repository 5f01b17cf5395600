"""Names that the comparison of verification rules writes and its reports read."""

ROOTS, ACCEPTANCE, CHOICES = "roots.parquet", "acceptance.parquet", "choices.json"
FAMILIES = ("chain", "iid", "delayed", "distinct")  # families of shapes whose rules compete with each other
AS_DRAFTED = 0  # column draws: as many as were drafted at the node
