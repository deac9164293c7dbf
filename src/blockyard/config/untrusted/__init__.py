"""Guards against strangers: values, files and folders that may come from somebody else, and the classes they may name.

Trust is decided here and nowhere else in `config`. Imports nothing heavy and nothing of `config` outside this folder.

targets.py         classes that a `_target_` may name: of trusted, installed and allowed packages
package_finder.py  packages of the user's own, found in two folders and only where `allow` names them
installed.py       components of installed packages: installing a package trusts it
user_yaml.py       a YAML file of the user's own as Hydra would read it, refused where it is unsound
local_path.py      paths of this machine, never addresses of an object store

Hydra reads folders of choices through `config/user_folders.py` and `config/hydra_sources.py`, which know the catalog.
`config/merge.py` refuses a config in which a file has reached keys of Hydra. The project file must not have been
written by another user; it is read by `config/project_file.py`.
"""
