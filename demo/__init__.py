"""`make demo`: every flight that left New York in 2013, through broker, archive and a streaming query.

One module a stage: `flights` (the data), `sending` (with a kill -9 half way), `delays` (the streaming query), `boards` (a
consumer group, and the audit of it), `checks` (what arrived, by unique id), `picture` (the plot). `__main__` is the story.
"""
