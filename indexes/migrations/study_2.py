"""An exam may be one of a class, whose time begins when its learner opens it."""

import sqlalchemy as sa
from alembic import op

revision = "study_2"
down_revision = "study_1"


def upgrade() -> None:
    op.add_column("exams", sa.Column("class_id", sa.Text))
    op.add_column("exams", sa.Column("time_limit_s", sa.REAL))
    op.create_index("exams_of_class", "exams", ["class_id"])
