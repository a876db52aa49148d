//! Data directories that must be refused, and left exactly as they are.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use redb::{Database, TableDefinition};
use starling_store::{
    EmbeddedOptions, EmbeddedStore, Holder, Key, LostState, OpenError, Revision, Snapshot, Store, Transaction,
};
use tempfile::TempDir;

const DATABASE: &str = "store.redb";

/// Random bits flipped, beside one in each byte of the header.
const FLIPS: usize = 200;

const MARK: &str = "store.acknowledged";
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

fn open(directory: &Path) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open(directory, EmbeddedOptions::default())
}

/// A directory with some hundred entries, cleanly closed.
async fn filled() -> (TempDir, Snapshot) {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    for round in 0..6_u8 {
        let transaction = (0..100_u8).fold(Transaction::new(), |transaction, n| {
            let key = Key::new(format!("service/{}/{n}", round % 4)).unwrap();
            transaction.put(key, vec![round ^ n; 300])
        });
        store.commit(transaction).await.unwrap();
    }
    let snapshot = store.load().await.unwrap();
    store.close().await;
    (directory, snapshot)
}

/// Every file but the lock, byte for byte.
fn bytes(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    files
        .map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
        .filter(|(name, _)| name != "store.lock")
        .collect()
}

/// Opens, expecting a refusal that names the path and leaves every byte; answers the error.
fn refused(directory: &Path) -> OpenError {
    let before = bytes(directory);
    let error = open(directory).expect_err("must be refused");
    assert_eq!(before, bytes(directory), "a refused directory is left alone: {error}");
    assert!(error.to_string().contains(directory.to_str().unwrap()), "{error}");
    error
}

#[tokio::test]
async fn a_truncated_database_is_refused() {
    let (directory, _) = filled().await;
    let path = directory.path().join(DATABASE);
    let whole = fs::read(&path).unwrap();
    for length in [whole.len() - 1, whole.len() - 4096, whole.len() / 2, 4096, 320, 64, 9, 1, 0] {
        fs::write(&path, &whole[..length]).unwrap();
        let error = refused(directory.path());
        let expected =
            matches!(error, OpenError::Corrupt { .. }) || (length < 9 && matches!(error, OpenError::Foreign { .. }));
        assert!(expected, "cut to {length}: {error:?}");
    }
    fs::write(&path, [&whole[..], &[0; 100]].concat()).unwrap();
    assert!(matches!(refused(directory.path()), OpenError::Corrupt { .. }));
    fs::write(&path, &whole).unwrap();
    open(directory.path()).unwrap();
}

/// Flips single bits of a database: each is refused, or lies where it cannot matter, which is to
/// say that nothing is missing. Answers how many were refused.
async fn flip_bits(pristine: &BTreeMap<String, Vec<u8>>, snapshot: &Snapshot, seed: u64) -> u32 {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(DATABASE);
    let whole = &pristine[DATABASE];
    let mut random = fastrand::Rng::with_seed(seed);
    let header = (0..320).map(|at| at * 8 + at % 8);
    let anywhere = (0..FLIPS).map(|_| random.usize(..whole.len() * 8));
    let mut refusals = 0;
    for bit in header.chain(anywhere) {
        for (name, content) in pristine {
            fs::write(directory.path().join(name), content).unwrap();
        }
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[whole[bit / 8] ^ (1 << (bit % 8))], (bit / 8) as u64).unwrap();
        let before = bytes(directory.path());
        match open(directory.path()) {
            Ok(store) => assert_eq!(store.load().await.unwrap(), *snapshot, "bit {bit}"),
            Err(error) => {
                let damage =
                    matches!(error, OpenError::Corrupt { .. } | OpenError::Foreign { .. } | OpenError::Lost { .. });
                assert!(damage, "bit {bit}: {error:?}");
                assert_eq!(before, bytes(directory.path()), "bit {bit}");
                refusals += 1;
            }
        }
    }
    refusals
}

#[tokio::test]
async fn a_flipped_bit_is_refused_or_harmless() {
    let (directory, snapshot) = filled().await;
    let refusals = flip_bits(&bytes(directory.path()), &snapshot, 42).await;
    assert!(refusals > 50, "only {refusals} refused");
}

/// The same after a crash, where damage could pass for an interrupted commit.
#[tokio::test]
async fn a_flipped_bit_after_a_crash_is_refused_or_harmless() {
    let (directory, _) = filled().await;
    let store = open(directory.path()).unwrap();
    for n in 0..5 {
        let key = Key::new(format!("service/late/{n}")).unwrap();
        store.commit(Transaction::new().put(key, "x")).await.unwrap();
    }
    let snapshot = store.load().await.unwrap();
    // What is on disk while the store is open is what a kill would leave.
    let crashed = bytes(directory.path());
    store.close().await;
    let refusals = flip_bits(&crashed, &snapshot, 43).await;
    assert!(refusals > 50, "only {refusals} refused");
}

/// Where the entries themselves lie, every flip is refused.
#[tokio::test]
async fn a_flipped_bit_in_a_value_is_refused() {
    let (directory, snapshot) = filled().await;
    let path = directory.path().join(DATABASE);
    let whole = fs::read(&path).unwrap();
    for entry in snapshot.entries.iter().step_by(40) {
        // Freed pages may hold the same bytes: damage every copy.
        let mut damaged = whole.clone();
        let record: Vec<u8> =
            [&entry.created.0.to_le_bytes()[..], &entry.modified.0.to_le_bytes()[..], &entry.value[..]].concat();
        let mut copies = 0;
        for at in 0..whole.len() - record.len() {
            if whole[at..].starts_with(&record) {
                damaged[at + 100] ^= 4;
                copies += 1;
            }
        }
        assert!(copies > 0);
        fs::write(&path, damaged).unwrap();
        assert!(matches!(refused(directory.path()), OpenError::Corrupt { .. }));
    }
}

#[tokio::test]
async fn other_peoples_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(DATABASE);
    let long = "the quick brown fox\n".repeat(10_000);
    for text in ["hello\n", long.as_str()] {
        fs::write(&path, text).unwrap();
        assert!(matches!(refused(directory.path()), OpenError::Foreign { .. }));
    }
    fs::write(&path, [0; 8192]).unwrap();
    assert!(matches!(refused(directory.path()), OpenError::Foreign { .. }));
    fs::remove_file(&path).unwrap();

    let theirs = Database::create(&path).unwrap();
    let transaction = theirs.begin_write().unwrap();
    transaction.open_table(TableDefinition::<u64, u64>::new("meta")).unwrap().insert(1, 2).unwrap();
    transaction.commit().unwrap();
    drop(theirs);
    assert!(matches!(refused(directory.path()), OpenError::Foreign { .. }));
    fs::remove_file(&path).unwrap();

    let empty = Database::create(&path).unwrap();
    drop(empty);
    assert!(matches!(refused(directory.path()), OpenError::Foreign { .. }));
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    let error = open(directory.path()).expect_err("a directory is no database");
    assert!(matches!(error, OpenError::Foreign { .. }), "{error:?}");
}

#[tokio::test]
async fn a_newer_schema_and_a_malformed_one_are_refused() {
    let (directory, _) = filled().await;
    let set = |schema: &[u8]| {
        let database = Database::open(directory.path().join(DATABASE)).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("schema", schema).unwrap();
        transaction.commit().unwrap();
    };
    set(&7_u32.to_le_bytes());
    let error = refused(directory.path());
    assert!(matches!(error, OpenError::NewerSchema { found: 7, supported: 1, .. }), "{error:?}");
    set(&0_u32.to_le_bytes());
    assert!(matches!(refused(directory.path()), OpenError::Corrupt { .. }));
    set(b"one");
    assert!(matches!(refused(directory.path()), OpenError::Corrupt { .. }));
    set(&1_u32.to_le_bytes());
    open(directory.path()).unwrap();
}

#[tokio::test]
async fn a_database_behind_what_was_acknowledged_is_refused() {
    let (directory, _) = filled().await;
    let path = directory.path().join(DATABASE);
    let old = fs::read(&path).unwrap();
    let store = open(directory.path()).unwrap();
    let transaction = Transaction::new().put(Key::new("late").unwrap(), "x");
    assert_eq!(store.commit(transaction).await.unwrap(), Revision(7));
    store.close().await;

    fs::write(&path, &old).unwrap();
    let error = refused(directory.path());
    let behind = LostState::Behind(Revision(6));
    assert!(matches!(error, OpenError::Lost { state, acknowledged: Revision(7), .. } if state == behind), "{error:?}");
    fs::remove_file(&path).unwrap();
    let error = refused(directory.path());
    assert!(matches!(error, OpenError::Lost { state: LostState::Missing, .. }), "{error:?}");

    // The way out that the message names.
    fs::write(&path, &old).unwrap();
    fs::remove_file(directory.path().join(MARK)).unwrap();
    assert_eq!(open(directory.path()).unwrap().revision(), Revision(6));

    fs::write(directory.path().join(MARK), "nonsense").unwrap();
    assert!(matches!(refused(directory.path()), OpenError::BadMark { .. }));
}

#[test]
fn a_directory_in_use_is_refused_with_its_holder() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let error = open(directory.path()).expect_err("one at a time");
    let own = Holder::Process(std::process::id());
    assert!(matches!(error, OpenError::InUse { holder, .. } if holder == own), "{error:?}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())));
    drop(store);
    open(directory.path()).unwrap();
}

#[test]
fn a_path_to_a_file_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = open(file.path()).expect_err("not a directory");
    assert!(matches!(error, OpenError::NotADirectory { .. }), "{error:?}");
    let error = open(&file.path().join("below")).expect_err("not a directory");
    assert!(matches!(error, OpenError::NotADirectory { .. }), "{error:?}");
}

#[test]
fn an_interrupted_creation_is_begun_anew() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("store.redb.new"), "half a datab").unwrap();
    let store = open(directory.path()).unwrap();
    assert_eq!(store.revision(), Revision::ZERO);
}
