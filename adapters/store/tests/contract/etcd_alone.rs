//! What is particular to etcd: others who use it, compaction, members that die, alarms, users, TLS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use starling_store::{
    CommitError, EtcdCredentials, EtcdIdentity, EtcdOpenError, EtcdOptions, EtcdStore, EtcdTls, EtcdTrouble, Expected,
    Failure, LoadError, Revision, Store, Transaction, WatchError,
};

use super::cases::{key, put};
use super::etcd_process::{DEADLINE, Etcd};
use super::{Bed, base};

/// `/starling/meta` in Base64, as etcd's JSON gateway wants keys and values.
const META_BASE64: &str = "L3N0YXJsaW5nL21ldGE=";

fn trouble(failure: &Failure) -> EtcdTrouble {
    failure.downcast_ref::<EtcdTrouble>().expect("trouble with etcd").clone()
}

/// Commits until that succeeds, and answers how long it took.
async fn until_committed(store: &EtcdStore, transaction: &Transaction) -> Duration {
    let start = Instant::now();
    loop {
        match store.commit(transaction.clone()).await {
            Ok(_) => return start.elapsed(),
            Err(error) => assert!(start.elapsed() < DEADLINE, "{error}"),
        }
    }
}

/// Opens a store on members that have only just been started, and may be busy with one another on a machine that has other things to do.
async fn opened(options: EtcdOptions) -> EtcdStore {
    let start = Instant::now();
    loop {
        match EtcdStore::open(options.clone()).await {
            Ok(store) => return store,
            Err(error) => assert!(start.elapsed() < DEADLINE, "{error}"),
        }
    }
}

async fn refusal(options: EtcdOptions) -> EtcdOpenError {
    EtcdStore::examine(options).await.expect_err("refused")
}

#[tokio::test]
async fn others_in_the_same_etcd_are_neither_seen_nor_waited_for() {
    let etcd = Etcd::start();
    let (ours, other) = (etcd.open().await, etcd.options());
    let other = EtcdStore::open(EtcdOptions { prefix: "starling-of-others".parse().unwrap(), ..other }).await.unwrap();
    assert_ne!((ours.id(), ours.epoch()), (other.id(), other.epoch()));
    let begun = Revision(base(&ours).await);
    let mut watch = ours.watch(begun).await.unwrap();
    for _ in 0..10 {
        other.commit(put("a", "theirs")).await.unwrap();
    }
    let nothing = ours.commit(Transaction::new().delete(key("a"))).await.unwrap();
    assert!(nothing.0 >= begun.0 + 10, "etcd's revision is everyone's");
    let mut seen = begun;
    while seen < nothing {
        let committed = tokio::time::timeout(DEADLINE, watch.next()).await.expect("in time").unwrap();
        assert!(committed.writes.is_empty() && committed.revision > seen, "{committed:?}");
        seen = committed.revision;
    }
    ours.commit(put("a", "ours")).await.unwrap();
    assert_eq!(watch.next().await.unwrap().writes.len(), 1);
    assert_eq!(ours.load().await.unwrap().entries.len(), 1);
}

/// One slip of an operator's hand must not stop every server.
#[tokio::test]
async fn keys_that_no_server_has_written_are_ignored() {
    let etcd = Etcd::start();
    let store = etcd.open().await;
    let mut watch = store.watch(Revision(base(&store).await)).await.unwrap();
    // "/starling/x", and "/starling/records/" with nothing behind it.
    for foreign in ["L3N0YXJsaW5nL3g=", "L3N0YXJsaW5nL3JlY29yZHMv"] {
        etcd.post("/v3/kv/put", &format!(r#"{{"key":"{foreign}","value":""}}"#));
    }
    store.commit(put("a", "ours")).await.unwrap();
    let written = async {
        loop {
            let committed = watch.next().await.unwrap();
            if !committed.writes.is_empty() {
                return committed.writes.len();
            }
        }
    };
    assert_eq!(tokio::time::timeout(DEADLINE, written).await.expect("in time"), 1);
    assert_eq!(store.load().await.unwrap().entries.len(), 1);
    drop((store, watch));
    assert_eq!(opened(etcd.options()).await.load().await.unwrap().entries.len(), 1);
}

#[tokio::test]
async fn what_is_compacted_is_told_and_never_skipped() {
    let etcd = Etcd::start();
    let store = etcd.open().await;
    let begun = base(&store).await;
    for _ in 0..20 {
        store.commit(put("a", "x")).await.unwrap();
    }
    let at = begun + 10;
    etcd.post("/v3/kv/compaction", &format!(r#"{{"revision":"{at}","physical":true}}"#));
    let late = store.watch(Revision(at - 2)).await;
    let Err(WatchError::Compacted { from, oldest }) = late else { panic!("{late:?}") };
    assert_eq!((from.0, oldest.0), (at - 2, at));
    for from in [at - 1, at] {
        let mut exact = store.watch(Revision(from)).await.unwrap();
        assert_eq!(exact.next().await.unwrap().revision, Revision(from + 1));
    }
}

#[tokio::test]
async fn large_stores_are_read_in_pages_and_large_histories_in_fragments() {
    let etcd = Etcd::start();
    let store = etcd.open().await;
    let begun = base(&store).await;
    // Over the size of an answer, then over the number of entries in a page.
    let value = Bytes::from(vec![7; 1_000_000]);
    for n in 0..70 {
        store.commit(Transaction::new().put(key(&format!("big/{n}")), value.clone())).await.unwrap();
    }
    for n in 0..130 {
        let many = (0..128).fold(Transaction::new(), |t, m| t.put(key(&format!("small/{n}/{m}")), "v"));
        store.commit(many).await.unwrap();
    }
    let snapshot = store.load().await.unwrap();
    assert_eq!((snapshot.revision.0, snapshot.entries.len()), (begun + 200, 70 + 130 * 128));
    assert!(snapshot.entries.is_sorted_by(|a, b| a.key < b.key));
    let mut watch = store.watch(Revision(begun)).await.unwrap();
    for revision in 1..=200 {
        let committed = watch.next().await.unwrap();
        let writes = if revision <= 70 { 1 } else { 128 };
        assert_eq!((committed.revision.0, committed.writes.len()), (begun + revision, writes));
    }
}

#[tokio::test]
async fn a_watch_outlives_etcd_and_writes_wait_for_it() {
    let mut etcd = Etcd::start();
    let store = Arc::new(etcd.open().await);
    let begun = Revision(base(&*store).await);
    let mut watch = store.watch(begun).await.unwrap();
    store.commit(put("a", "1")).await.unwrap();
    assert_eq!(watch.next().await.unwrap().writes.len(), 1);
    etcd.kill9();
    // The first may have been under way.
    let _ = store.commit(put("a", "2").require(key("b"), Expected::Absent)).await;
    let start = Instant::now();
    let refused = store.commit(put("a", "3")).await;
    let Err(CommitError::Refused(failure)) = refused else { panic!("{refused:?}") };
    assert!(matches!(trouble(&failure), EtcdTrouble::Unreachable { .. }), "{failure}");
    assert!(start.elapsed() < Duration::from_secs(8), "it took {:?}", start.elapsed());
    let etcd = etcd.restart();
    until_committed(&store, &put("c", "4")).await;
    let last = store.load().await.unwrap().revision;
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        let committed = tokio::time::timeout(DEADLINE, watch.next()).await.expect("the watch is back").unwrap();
        seen.push(committed.revision);
    }
    assert!(seen.is_sorted() && seen.len() as u64 == last.0 - begun.0 - 1, "{seen:?} up to {last}");
    drop(etcd);
}

#[tokio::test]
async fn three_members_are_as_one_while_two_of_them_run() {
    let mut members = Etcd::start_three();
    let endpoints = members.iter().map(Etcd::endpoint).collect();
    let store = opened(EtcdOptions::new(endpoints)).await;
    let mut watch = store.watch(store.load().await.unwrap().revision).await.unwrap();
    store.commit(put("a", "1")).await.unwrap();
    // That to which the store is connected; it may be the leader, too.
    members[0].kill9();
    let took = until_committed(&store, &put("b", "2")).await;
    eprintln!("writes were back {} ms after a member was killed", took.as_millis());
    members[1].kill9();
    let refused = loop {
        match store.commit(put("d", "4")).await {
            Err(CommitError::Refused(failure)) => break trouble(&failure),
            Ok(revision) => panic!("{revision} was committed by one of three"),
            Err(error) => eprintln!("{error}"),
        }
    };
    assert!(matches!(refused, EtcdTrouble::NoQuorum | EtcdTrouble::Unreachable { .. }), "{refused}");
    let [first, second, third] = members;
    let _members = [first.restart(), second, third];
    until_committed(&store, &put("c", "3")).await;
    let mut keys = Vec::new();
    while keys.last().is_none_or(|last| last != "c") {
        let committed = tokio::time::timeout(DEADLINE, watch.next()).await.expect("the watch is back").unwrap();
        keys.extend(committed.writes.iter().map(|write| write.key().to_string()));
    }
    assert!(keys.starts_with(&["a".to_owned(), "b".to_owned()]), "{keys:?}");
}

#[tokio::test]
async fn a_server_knows_its_etcd_again() {
    let (etcd, other) = (Etcd::start(), Etcd::start());
    let directory = tempfile::tempdir().unwrap();
    let memory = Some(directory.path().join("store"));
    let with_memory = |options: EtcdOptions| EtcdOptions { memory: memory.clone(), ..options };
    let id = EtcdStore::open(with_memory(etcd.options())).await.unwrap().id();
    assert_eq!(EtcdStore::open(with_memory(etcd.options())).await.unwrap().id(), id);
    let elsewhere = refusal(with_memory(other.options())).await;
    assert!(matches!(elsewhere, EtcdOpenError::OtherStore { .. }), "{elsewhere}");
    let prefix = "elsewhere".parse().unwrap();
    let astray = refusal(with_memory(EtcdOptions { prefix, ..etcd.options() })).await;
    assert!(astray.to_string().contains("has none under the prefix"), "{astray}");
    std::fs::write(directory.path().join("store/etcd"), "?").unwrap();
    assert!(matches!(refusal(with_memory(etcd.options())).await, EtcdOpenError::BadMemory { .. }));
}

#[tokio::test]
async fn data_of_others_and_of_later_releases_are_left_alone() {
    let etcd = Etcd::start();
    // "/starling/x" and "".
    etcd.post("/v3/kv/put", r#"{"key":"L3N0YXJsaW5nL3g=","value":""}"#);
    let foreign = refusal(etcd.options()).await;
    assert!(matches!(&foreign, EtcdOpenError::Foreign { key, .. } if key == "/starling/x"), "{foreign}");
    // "starling-store\nschema 3\n".
    let newer = format!(r#"{{"key":"{META_BASE64}","value":"c3Rhcmxpbmctc3RvcmUKc2NoZW1hIDMK"}}"#);
    etcd.post("/v3/kv/put", &newer);
    assert!(matches!(refusal(etcd.options()).await, EtcdOpenError::NewerSchema { found: 3, supported: 2, .. }));
}

#[tokio::test]
async fn nothing_is_written_into_data_that_were_replaced_meanwhile() {
    let etcd = Etcd::start();
    let store = etcd.open().await;
    store.commit(put("a", "1")).await.unwrap();
    etcd.post("/v3/kv/deleterange", &format!(r#"{{"key":"{META_BASE64}"}}"#));
    let refused = store.commit(put("a", "2")).await;
    let Err(CommitError::Failed(failure)) = refused else { panic!("{refused:?}") };
    assert_eq!(trouble(&failure), EtcdTrouble::Replaced);
    // Nor is anything read from them as if they were its own.
    let refused = store.load().await;
    let Err(LoadError::Failed(failure)) = refused else { panic!("{refused:?}") };
    assert_eq!(trouble(&failure), EtcdTrouble::Replaced);
}

#[tokio::test]
async fn an_etcd_out_of_space_is_told_as_such_and_heals() {
    let etcd = Etcd::start();
    let store = etcd.open().await;
    etcd.post("/v3/maintenance/alarm", r#"{"action":"ACTIVATE","alarm":"NOSPACE"}"#);
    let refused = store.commit(put("a", "1")).await;
    let Err(CommitError::Unavailable(failure)) = refused else { panic!("{refused:?}") };
    assert_eq!(trouble(&failure), EtcdTrouble::NoSpace);
    etcd.post("/v3/maintenance/alarm", r#"{"action":"DEACTIVATE","alarm":"NOSPACE"}"#);
    store.commit(put("a", "1")).await.unwrap();
}

#[tokio::test]
async fn users_are_let_in_by_their_password_and_to_what_is_theirs() {
    let etcd = Etcd::start();
    for (path, body) in [
        ("/v3/auth/user/add", r#"{"name":"root","password":"of root"}"#),
        ("/v3/auth/role/add", r#"{"name":"root"}"#),
        ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("/v3/auth/user/add", r#"{"name":"mesh","password":"of mesh"}"#),
        ("/v3/auth/role/add", r#"{"name":"mesh"}"#),
        ("/v3/auth/user/grant", r#"{"user":"mesh","role":"mesh"}"#),
        // From "/starling/" up to "/starling0".
        (
            "/v3/auth/role/grant",
            r#"{"name":"mesh","perm":{"permType":"READWRITE","key":"L3N0YXJsaW5nLw==","range_end":"L3N0YXJsaW5nMA=="}}"#,
        ),
        ("/v3/auth/enable", "{}"),
    ] {
        etcd.post(path, body);
    }
    let by = |user: &str, password: &str| {
        let credentials = Some(EtcdCredentials { user: user.to_owned(), password: password.to_owned() });
        EtcdOptions { credentials, ..etcd.options() }
    };
    let opened = EtcdStore::open(by("mesh", "of mesh")).await.unwrap();
    let mut watch = opened.watch(Revision(base(&opened).await)).await.unwrap();
    opened.commit(put("a", "1")).await.unwrap();
    assert_eq!(watch.next().await.unwrap().writes.len(), 1);
    let wrong = refusal(by("mesh", "of root")).await;
    assert!(matches!(wrong, EtcdOpenError::Trouble(EtcdTrouble::Authentication { .. })), "{wrong}");
    let nobody = refusal(etcd.options()).await;
    assert!(matches!(nobody, EtcdOpenError::Trouble(EtcdTrouble::CredentialsMissing)), "{nobody}");
    let not_theirs = refusal(EtcdOptions { prefix: "elsewhere".parse().unwrap(), ..by("mesh", "of mesh") }).await;
    assert!(matches!(not_theirs, EtcdOpenError::Trouble(EtcdTrouble::Permission)), "{not_theirs}");
}

#[tokio::test]
async fn etcd_is_spoken_to_over_tls_and_both_ends_show_who_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let issue = || {
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        (leaf.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let (server, client) = (issue(), issue());
    let ca_pem = ca_certificate.pem();
    let (ca_file, certificate, key) = (file("ca", &ca_pem), file("certificate", &server.0), file("key", &server.1));
    let arguments =
        ["--client-cert-auth", "--trusted-ca-file", &ca_file, "--cert-file", &certificate, "--key-file", &key];
    let etcd = Etcd::start_with(&arguments);
    let with =
        |identity| EtcdOptions { tls: Some(EtcdTls { ca_pem: ca_pem.clone().into(), identity }), ..etcd.options() };
    let identity = EtcdIdentity { certificate_pem: client.0.into(), key_pem: client.1.into() };
    let store = EtcdStore::open(with(Some(identity))).await.unwrap();
    store.commit(put("a", "1")).await.unwrap();
    for options in [with(None), etcd.options()] {
        let refused = refusal(options).await;
        assert!(matches!(refused, EtcdOpenError::Trouble(_)), "{refused}");
    }
}
