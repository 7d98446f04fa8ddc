"""An exported folder to the Hugging Face hub."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

from dipaco_swarm.errors import UnreachableError, UsageError

NOT_ALLOWED = (401, 403)
NO_ANSWER: tuple[type[BaseException], ...] = (OSError, HfHubHTTPError.__bases__[0], OfflineModeIsEnabled, RuntimeError)
"""The hub's library has its errors of the line from one HTTP library or another; it derives its own from them."""


def push(folder: Path, name: str) -> str:
    """Upload an exported folder as the model `name` (OWNER/NAME), which is made if it is not there; its address.

    The account is the hub's own business: HF_TOKEN, or `hf auth login`. Raises UsageError when the name or the account
    does not do, UnreachableError when the hub does not answer. The folder stays where it is.
    """
    api = HfApi()
    try:
        repository = api.create_repo(name, exist_ok=True)
        api.upload_folder(
            repo_id=repository.repo_id, folder_path=folder, commit_message=f"Upload {folder.name} with dipaco-swarm"
        )
    except (HFValidationError, LocalTokenNotFoundError) as error:
        raise UsageError(f"{name} cannot be pushed: {error}; {folder} is written") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status in NOT_ALLOWED:
            raise UsageError(
                f"the hub does not let this account write {name} ({status}): log in with `hf auth login` or set "
                f"HF_TOKEN to a token that may write there; {folder} is written"
            ) from None
        raise UnreachableError(f"the hub refuses {name}: {_first(error)}; {folder} is written") from None
    except NO_ANSWER as error:
        raise UnreachableError(
            f"the Hugging Face hub cannot be reached: {_first(error)}; {folder} is written: push it later with "
            f"`hf upload {name} {folder}`"
        ) from None
    return str(repository)


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
