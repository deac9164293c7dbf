"""Many proposals, one after the other, against a baseline that grows: one error rate for everything that is kept.

ledger.py      the events of a campaign, appended to one file that survives a kill
standing.py    the baseline, the level of the next judgement and what is left, folded from the events
judgement.py   the e-value of a proposal, its level, and the verdict
allowed.py     the part of a config that a proposal may change
arms.py        the runs of a baseline and a proposal: a sweep plan of two arms
referee.py     the campaign of a user: create, propose, measure, close
audit.py       every verdict computed again from the ledger and the run folders
account.py     the campaign in sentences
"""
