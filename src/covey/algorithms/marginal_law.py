from typing import NamedTuple
def fit_law(settings, state, spec, ask): return state
def draw_law(key, law, count): return law
