//! Where groups may be made, as the kernel tells a process of its mounts and of its own group.

use std::path::{Path, PathBuf};

/// Folders below which groups are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Version 1: one for each controller.
    One { cpu: PathBuf, memory: PathBuf },
    /// Version 2.
    Two(PathBuf),
}

/// A hierarchy that is mounted.
struct Mount<'a> {
    /// The group that is seen at the mount point.
    root: &'a str,
    at: &'a str,
    /// Of version 2 there is one only.
    is_unified: bool,
    /// Controllers among them, in version 1.
    options: &'a str,
}

/// The places to try, the best first. `mounts` is `/proc/self/mountinfo`, `own` `/proc/self/cgroup`.
///
/// In version 1 that is the process' own group. In version 2 a group with processes cannot have groups with controllers
/// below it, unless it is the root, so that those above it follow.
pub(super) fn places(mounts: &str, own: &str) -> Vec<Place> {
    let mounts: Vec<_> = mounts.lines().filter_map(mount).collect();
    let of_controller = |controller: &str| {
        let has = |mount: &&Mount<'_>| !mount.is_unified && mount.options.split(',').any(|it| it == controller);
        let mount = mounts.iter().find(has)?;
        Some(folder(mount, group(own, controller)?))
    };
    let mut places = Vec::new();
    if let (Some(cpu), Some(memory)) = (of_controller("cpu"), of_controller("memory")) {
        places.push(Place::One { cpu, memory });
    }
    if let Some(mount) = mounts.iter().find(|mount| mount.is_unified)
        && let Some(group) = group(own, "")
    {
        let (folder, top) = (folder(mount, group), Path::new(mount.at));
        places.extend(folder.ancestors().take_while(|it| it.starts_with(top)).map(|it| Place::Two(it.to_owned())));
    }
    places
}

/// `ID PARENT DEVICE ROOT MOUNT-POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`; see proc_pid_mountinfo(5).
fn mount(line: &str) -> Option<Mount<'_>> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, at) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let is_unified = match after.next()? {
        "cgroup" => false,
        "cgroup2" => true,
        _ => return None,
    };
    Some(Mount { root, at, is_unified, options: after.nth(1)? })
}

/// The process' group by a controller; of version 2, which names none, by nothing. `NUMBER:CONTROLLER,…:GROUP`.
fn group<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|it| it == controller).then_some(group)
    })
}

/// Where a group is seen. One that is outside of what is mounted is not, and the mount point stands for it.
fn folder(mount: &Mount<'_>, group: &str) -> PathBuf {
    let below = Path::new(group).strip_prefix(mount.root).unwrap_or(Path::new(""));
    // An empty path would end the folder with a slash.
    if below.as_os_str().is_empty() { PathBuf::from(mount.at) } else { Path::new(mount.at).join(below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn one(cpu: &str, memory: &str) -> Place {
        Place::One { cpu: cpu.into(), memory: memory.into() }
    }

    #[test]
    fn version_1_has_a_folder_for_each_controller() {
        let own = "4:memory:/a/b\n3:cpuset:/x\n1:cpu,cpuacct:/\n0::/\n";
        let found = places(ONE, own);
        assert_eq!(found[0], one("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory/a/b"));
        assert_eq!(found[1..], [Place::Two("/sys/fs/cgroup/unified".into())]);
    }

    #[test]
    fn in_a_container_the_mounts_begin_at_its_group() {
        let mounts = ONE.replace("0:32 / ", "0:32 /docker/1f ").replace("0:29 / ", "0:29 /docker/1f ");
        let own = "4:memory:/docker/1f/in\n1:cpu,cpuacct:/\n";
        assert_eq!(places(&mounts, own), [one("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory/in")]);
    }

    #[test]
    fn version_2_has_one_folder_or_one_of_those_above_it() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let two = |path: &str| Place::Two(path.into());
        let found = places(mounts, "0::/user.slice/session-1.scope\n");
        let above = [two("/sys/fs/cgroup/user.slice/session-1.scope"), two("/sys/fs/cgroup/user.slice")];
        assert_eq!(found, [&above[..], &[two("/sys/fs/cgroup")]].concat());
    }

    #[test]
    fn without_a_controller_there_is_no_place() {
        assert_eq!(places("", "0::/\n"), []);
        let mounts: String = ONE.lines().filter(|line| !line.contains("memory") && !line.contains("cgroup2")).collect();
        assert_eq!(places(&mounts, "1:cpu,cpuacct:/\n"), []);
    }
}
