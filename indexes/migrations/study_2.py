"""An exam of version 0.1 may be one of a class, whose time begins when its learner opens it."""

import sqlalchemy as sa
from alembic import op

revision = "study_2"
down_revision = None


def upgrade() -> None:
    if "class_id" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("exams")}:
        op.add_column("exams", sa.Column("class_id", sa.Text))
        op.add_column("exams", sa.Column("time_limit_s", sa.REAL))
    op.create_index("exams_of", "exams", ["learner", "created_at"], if_not_exists=True)
    op.create_index("exams_of_class", "exams", ["class_id"], if_not_exists=True)
