"""What guards against strangers: values, files and folders that may come from somebody else, and what they may name.

Nothing else of `config` decides what is trusted. Imports nothing heavy and nothing of `config` outside this folder.

targets.py         what a `_target_` may name: trusted, installed and allowed packages
package_finder.py  packages of the user's own, found in two folders and only where `allow` names them
installed.py       components of installed packages, which installing trusts
user_yaml.py       a YAML file of the user's own as Hydra would read it, refused where it is unsound
local_path.py      paths of this machine, never addresses of an object store

Hydra reads folders of choices through `config/user_folders.py` and `config/hydra_sources.py`, which know the catalog;
the project file, which another user must not have written, is read by `config/project_file.py`.
"""
