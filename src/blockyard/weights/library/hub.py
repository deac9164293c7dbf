"""Exported folders in repositories of the Hugging Face hub.

Reference: huggingface_hub create_repo, upload_folder
"""

from __future__ import annotations

from pathlib import Path

from blockyard.errors import UserError, first_line


def require_token(repository: str) -> None:
    """Raise UserError where this machine has no token of the hub. It is not tried, which would need the network."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise UserError(f"push={repository} needs a token of the hub: set HF_TOKEN, or log in with `hf auth login`")


def push_folder(folder: Path, repository: str) -> str:
    """Send the files of a folder to a repository as one commit, and return the commit's address.

    The repository is made where it does not exist, private. Files of the repository that the folder lacks stay there.

    Raises:
        UserError: the hub did not take them; the folder stays as it is.
    """
    from huggingface_hub import create_repo, upload_folder

    try:
        create_repo(repository, private=True, exist_ok=True)
        commit = upload_folder(repo_id=repository, folder_path=folder, commit_message="blockyard export")
    except Exception as error:  # of the hub, of the network, or of the library below, whose errors have no common base
        raise UserError(
            f"{folder} is written, and the hub did not take it ({first_line(error)}); send it again with "
            f"`hf upload {repository} {folder}`"
        ) from error
    return commit.commit_url
