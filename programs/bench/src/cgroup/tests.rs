//! On a made-up tree of folders, which holds what is written and nothing else; and on a real one, where it may be had.

use std::process::{Child, Command};

use super::*;

fn groups(place: Place) -> Cgroups {
    Cgroups { place, prefix: format!("{PREFIX}1-2-") }
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

const HALF: Option<Limits> = Some(Limits { cores: 0.25, memory_mib: 500 });

#[test]
fn version_1_is_told_in_its_own_words() {
    let root = tempfile::tempdir().unwrap();
    let (cpu, memory) = (root.path().join("cpu"), root.path().join("memory"));
    [&cpu, &memory].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let mut group = groups(Place::One { cpu: cpu.clone(), memory: memory.clone() }).make("a").unwrap();
    let (cpu, memory) = (cpu.join("starling-bench-1-2-a"), memory.join("starling-bench-1-2-a"));
    group.take(77).unwrap();
    assert_eq!((read(cpu.join("cgroup.procs")), read(memory.join("cgroup.procs"))), ("77".to_owned(), "77".to_owned()));
    std::fs::write(memory.join("memory.stat"), "cache 5\nrss 1048576\nrss_huge 0\n").unwrap();
    group.limit(HALF).unwrap();
    assert_eq!(
        (read(cpu.join("cpu.cfs_quota_us")), read(cpu.join("cpu.cfs_period_us"))),
        ("25000".into(), "100000".into())
    );
    assert_eq!(read(memory.join("memory.limit_in_bytes")), "524288000");
    std::fs::write(cpu.join("cpu.stat"), "nr_periods 9\nnr_throttled 3\nthrottled_time 1500000000\n").unwrap();
    assert_eq!(group.throttled().unwrap(), Duration::from_millis(1500));
    let oom = |kills: u32| {
        let text = format!("oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n");
        std::fs::write(memory.join("memory.oom_control"), text).unwrap();
        group.killed_at()
    };
    assert_eq!((oom(0), oom(1)), (None, Some(500)));
    group.limit(None).unwrap();
    assert_eq!(
        (read(cpu.join("cpu.cfs_quota_us")), read(memory.join("memory.limit_in_bytes"))),
        ("-1".into(), "-1".into())
    );
}

#[test]
fn version_2_is_told_in_its_own_words() {
    let root = tempfile::tempdir().unwrap();
    let mut group = groups(Place::Two(root.path().to_owned())).make("a").unwrap();
    assert_eq!(read(root.path().join("cgroup.subtree_control")), "+cpu +memory");
    let folder = root.path().join("starling-bench-1-2-a");
    group.take(77).unwrap();
    assert_eq!((read(folder.join("cgroup.procs")), read(folder.join("memory.swap.max"))), ("77".into(), "0".into()));
    std::fs::write(folder.join("memory.stat"), "anon 1048576\nfile 99999999999\n").unwrap();
    group.limit(HALF).unwrap();
    assert_eq!(
        (read(folder.join("cpu.max")), read(folder.join("memory.max"))),
        ("25000 100000".into(), "524288000".into())
    );
    std::fs::write(folder.join("cpu.stat"), "usage_usec 7\nnr_throttled 3\nthrottled_usec 1500\n").unwrap();
    assert_eq!(group.throttled().unwrap(), Duration::from_micros(1500));
    std::fs::write(folder.join("memory.events"), "low 0\noom 4\noom_kill 1\noom_group_kill 0\n").unwrap();
    assert_eq!(group.killed_at(), Some(500));
    group.limit(None).unwrap();
    assert_eq!((read(folder.join("cpu.max")), read(folder.join("memory.max"))), ("max 100000".into(), "max".into()));
}

#[test]
fn a_process_is_not_held_to_less_memory_than_it_has() {
    let root = tempfile::tempdir().unwrap();
    let mut group = groups(Place::Two(root.path().to_owned())).make("a").unwrap();
    let folder = root.path().join("starling-bench-1-2-a");
    std::fs::write(folder.join("memory.stat"), "anon 629145600\n").unwrap();
    let refused = group.limit(HALF).unwrap_err().to_string();
    assert!(refused.contains("500 MiB") && refused.contains("it has 600 MiB"), "{refused}");
    assert!(!folder.join("memory.max").exists() && group.limits.is_none());
}

#[test]
fn a_group_is_removed_and_half_a_group_is_not_made() {
    let root = tempfile::tempdir().unwrap();
    let cpu = root.path().join("cpu");
    std::fs::create_dir(&cpu).unwrap();
    let refused = groups(Place::One { cpu: cpu.clone(), memory: root.path().join("memory") }).make("a").unwrap_err();
    assert!(refused.to_string().contains("memory/starling-bench-1-2-a"), "{refused:#}");
    assert_eq!(std::fs::read_dir(&cpu).unwrap().count(), 0);
    std::fs::create_dir(cpu.join("starling-bench-1-2-b")).unwrap();
    let files = Files::Two(cpu.join("starling-bench-1-2-b"));
    drop(Cgroup { files, limits: None });
    assert_eq!(std::fs::read_dir(&cpu).unwrap().count(), 0);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where there is no right to it, what is said about that is what there is to test.
#[test]
fn a_real_process_is_throttled_and_its_group_goes_with_it() {
    let groups = match Cgroups::find() {
        Ok(groups) => groups,
        Err(error) => {
            assert!(error.to_string().contains("run as root"), "{error:#}");
            return;
        }
    };
    let mut group = groups.make("busy").unwrap();
    let folders = match &group.files {
        Files::One { cpu, memory } => vec![cpu.clone(), memory.clone()],
        Files::Two(folder) => vec![folder.clone()],
    };
    let busy = Killed(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    group.take(busy.0.id()).unwrap();
    group.limit(Some(Limits { cores: 0.05, memory_mib: 64 })).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while group.throttled().unwrap() < Duration::from_millis(50) {
        assert!(Instant::now() < deadline, "it was not throttled");
        std::thread::sleep(PAUSE);
    }
    assert_eq!(group.killed_at(), None);
    drop(busy);
    drop(group);
    assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?}");
}
