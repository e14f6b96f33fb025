//! SIGTERM ends a node within five seconds, whoever holds on to it.

use apportion_tests::{DAILY, GENEROUS, daily};
use chaos::cluster::policies_file;
use chaos::node::{Node, NodeSpec};
use chaos::{RedisServer, cli, wait_until};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const LIMIT: Duration = Duration::from_secs(5);

fn start(store_url: &str) -> (Node, TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let policies = policies_file(&["us-east"], DAILY);
    fs::write(dir.path().join("policies.toml"), policies).expect("the policies are written");
    let spec = NodeSpec::new("us-east", store_url).expect("free ports");
    let mut node = Node::new(spec, dir.path(), "us-east").expect("a node");
    node.start().expect("the node starts");
    node.wait_ready().expect("the node is ready");
    (node, dir)
}

/// Once the exit is clean and in time.
fn terminate(mut node: Node) {
    let status = node.terminate(LIMIT).expect("it ends in time");
    let status = status.expect("it was running");
    assert!(status.success(), "{status}\n{}", node.log());
    assert!(!node.log().contains("panicked at"), "{}", node.log());
}

#[test]
fn an_idle_node_ends_in_time() {
    let (node, _dir) = start("memory:");
    terminate(node);
}

#[test]
fn a_held_grpc_stream_does_not_keep_a_node() {
    let (node, _dir) = start("memory:");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = node.spec().grpc_url();
    let (mut stream, _client) = runtime.block_on(async {
        let channel = Endpoint::from_shared(url)
            .expect("the URL is one")
            .connect()
            .await
            .expect("the node listens");
        let mut client = HealthClient::new(channel);
        let request = HealthCheckRequest::default();
        let answer = client.watch(request).await.expect("health can be watched");
        let mut stream = answer.into_inner();
        // Health follows readiness within a moment.
        let mut status = ServingStatus::Unknown;
        while status != ServingStatus::Serving {
            let message = stream.message().await.expect("a message");
            status = message.expect("the stream is open").status();
        }
        (stream, client)
    });

    let ended = runtime.spawn(async move {
        let mut last = ServingStatus::Serving;
        while let Ok(Some(message)) = stream.message().await {
            last = message.status();
        }
        last
    });
    terminate(node);
    let last = runtime.block_on(ended).expect("the watcher ends");
    assert_eq!(last, ServingStatus::NotServing, "clients are told first");
}

#[test]
fn open_http_connections_do_not_keep_a_node() {
    let (node, _dir) = start("memory:");
    let answer = node.api().check("us-east", &daily("held"), 1);
    assert!(answer.is_ok_and(|answer| answer.allowed()));
    // One that is kept alive, one that has said half of what it wants.
    let mut idle = TcpStream::connect(node.spec().http).expect("the node listens");
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .expect("it is sent");
    idle.read_exact(&mut [0; 12]).expect("an answer begins");
    let mut half = TcpStream::connect(node.spec().http).expect("the node listens");
    half.write_all(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 90\r\n\r\n{\"attr")
        .expect("it is sent");
    terminate(node);
}

#[test]
fn a_store_that_is_gone_does_not_keep_a_node() {
    let mut redis = RedisServer::start().expect("redis-server starts");
    let (node, _dir) = start(&redis.url());
    redis.kill();
    let api = node.api();
    wait_until(GENEROUS, "the node to miss its store", || {
        let answer = api.check("us-east", &daily("gone"), 1);
        answer.is_ok_and(|answer| !answer.allowed())
    })
    .expect("it notices");
    terminate(node);
}

#[test]
fn output_that_nobody_reads_any_more_does_not_keep_a_node() {
    let (mut node, _dir) = start("memory:");
    // The same files, by hand: with pipes whose readers are gone.
    node.kill();
    let mut command = cli::command().expect("the binary is built");
    let piped = command
        .args(["serve", "--config"])
        .arg(node.config())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    drop((child.stdout.take(), child.stderr.take()));
    let (api, url) = (node.api(), format!("{}/readyz", node.spec().http_url()));
    let ready = wait_until(GENEROUS, "the node is ready", || {
        api.get(&url).is_ok_and(|reply| reply.status == 200)
    });
    let ended = ready.is_ok() && {
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.expect("kill is there").success());
        wait_until(LIMIT, "the node has ended", || {
            child.try_wait().is_ok_and(|status| status.is_some())
        })
        .is_ok()
    };
    if !ended {
        child.kill().expect("it was running");
        child.wait().expect("it ends");
    }
    ready.expect("the node is ready");
    assert!(ended, "SIGTERM ended it in time");
}
