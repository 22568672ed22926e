"""A study file of version 0.1 gets drafts of exams, and an index for the exams of a learner."""

import sqlalchemy as sa
from alembic import op

revision = "study_1"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "drafts",
        sa.Column("exam_id", sa.Text, sa.ForeignKey("exams.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("answers", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
    )
    op.create_index("exams_of", "exams", ["learner", "created_at"])
