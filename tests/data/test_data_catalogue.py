"""Your own data from a configuration: the options of the loaders `table` and `saved`."""

import numpy as np

from covey.config.catalogue import DATA
from covey.config.options import check, options_of


def loaded(name, **table):
    checked = check("data", options_of(DATA[name]), table)
    assert checked.errors == []
    return DATA[name](**checked.values)


def test_a_table_may_bring_its_splits_and_clients_without_rows(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("site,age,ill,use\nb,1,0,test\na,2,1,train\nb,3,1,train\n")
    options = {"outcome": "ill", "client": "site", "split_column": "use", "classes": 2}
    data = loaded("table", path=str(path), clients=["a", "b", "new"], **options)
    assert data.counts("train").tolist() == [1, 1, 0]
    assert data.counts("test").tolist() == [0, 1, 0]
    scaled, scaling = data.standardised()
    scaled.save(tmp_path / "set")
    again = loaded("saved", path=str(tmp_path / "set"), memory_map=False)
    assert again.bounds.tolist() == data.bounds.tolist()
    assert again.scaling is not None
    assert np.array_equal(again.scaling.mean, scaling.mean)
