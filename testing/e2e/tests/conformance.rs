//! Whether the native data plane speaks HTTP/2 as RFC 9113 and RFC 7541 demand: h2spec asks it.

use std::process::Command;

use starling_e2e::{Mesh, MeshOptions, Plane, Workload, cli, http, tools};

/// The one question that is answered otherwise: the listener speaks HTTP/1.1, too, so that what is no HTTP/2 preface gets
/// an answer in HTTP/1.1 before the connection is closed.
const ANSWERED_OTHERWISE: &str = "2: Sends invalid connection preface";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_question_about_http2_is_answered_as_the_standard_demands() {
    for protocol in ["http2", "http"] {
        let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
        mesh.protocol("api", protocol).await;
        let (web, _api) = tokio::join!(
            Workload::new("web").calls("api").start_on(&mesh, Plane::Native),
            Workload::new("api").start_on(&mesh, Plane::Native),
        );
        web.served_by("api", &["api"], "it is up").await;
        let address = web.upstream("api");
        let (host, port) = address.split_once(':').expect("host and port");
        let mut command = Command::new(tools::h2spec());
        command.args(["--host", host, "--port", port, "--timeout", "5"]);
        let output = cli::run(command).await;
        let failed: Vec<_> =
            output.stdout.lines().filter_map(|line| line.trim_start().strip_prefix("× ")).map(str::trim).collect();
        // Failures are listed twice: as they occur, and at the end.
        let others: Vec<_> = failed.iter().filter(|name| !name.contains(ANSWERED_OTHERWISE)).collect();
        assert!(others.is_empty(), "with {protocol} behind: {others:#?}\n{}", output.stdout);
        assert!(output.stdout.contains("145 tests, 144 passed, 0 skipped, 1 failed"), "{}", output.stdout);
        let answer = http::get(&address, "/").await.expect("an answer");
        assert_eq!(answer.status, 200, "and it serves on");
    }
}
