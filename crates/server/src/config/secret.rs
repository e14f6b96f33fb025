//! The `[keys]` table: what sensitive values of subjects are hashed with. No message repeats it.

use super::read_bounded;
use apportion_core::PolicySet;
use apportion_core::policy::source::Table;
use std::fmt;
use std::path::Path;

const LEAST_BYTES: usize = 16;
const MOST_BYTES: usize = 1024;

/// The same in every region, or their keys differ. Neither shown nor logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// `None` after a complaint, `Some(None)` where there is no secret and none is needed.
pub(super) fn read_secret(
    root: &Table<'_>,
    directory: &Path,
    policies: Option<&PolicySet>,
) -> Option<Option<Secret>> {
    const EXPECTED: &str = "the path of a file with 16 to 1024 random bytes, the same in every region, relative to this file";
    let Some(keys) = root.get("keys") else {
        let sensitive = policies?.policies.iter().find(|p| !p.sensitive.is_empty());
        return match sensitive {
            Some(policy) => {
                root.wrong(
                    format!("policy {:?} has sensitive attributes, and there is no secret to hash them with", policy.name),
                    format!("a [keys] table with secret_file, {EXPECTED}"),
                );
                None
            }
            None => Some(None),
        };
    };
    let keys = keys.table("a table with secret_file")?;
    keys.only(&["secret_file"]);
    let field = keys.required("secret_file", EXPECTED)?;
    let path = directory.join(field.text(EXPECTED)?);
    let bytes = match read_bounded(&path) {
        Ok(bytes) => bytes.trim_ascii_end().to_vec(),
        Err(error) => {
            field.wrong(
                format!("{} can't be read: {error}", path.display()),
                EXPECTED,
            );
            return None;
        }
    };
    if !(LEAST_BYTES..=MOST_BYTES).contains(&bytes.len()) {
        field.wrong(
            format!("{} has {} bytes", path.display(), bytes.len()),
            EXPECTED,
        );
        return None;
    }
    Some(Some(Secret(bytes)))
}
