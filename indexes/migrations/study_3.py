"""An exam of version 0.1 may be one of a class: its time begins with its learner, and the assistant may help."""

import sqlalchemy as sa
from alembic import op

revision = "study_3"
down_revision = None


def upgrade() -> None:
    here = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("exams")}
    assistant = sa.Column("assistant", sa.Boolean, nullable=False, server_default="0")
    for column in (sa.Column("class_id", sa.Text), sa.Column("time_limit_s", sa.REAL), assistant):
        if column.name not in here:
            op.add_column("exams", column)
    op.create_index("exams_of", "exams", ["learner", "created_at"], if_not_exists=True)
    op.create_index("exams_of_class", "exams", ["class_id"], if_not_exists=True)
