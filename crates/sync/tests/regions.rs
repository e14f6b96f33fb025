//! Three regions over real gRPC: what the machine promises still holds once a driver runs it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use apportion_core::Region;
use apportion_core::lives::OnEmpty;
use common::{World, eventually};
use std::time::Duration;
use tokio::time::{Instant, timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_region_uses_a_quota_to_its_last_unit_and_no_further() {
    let world = World::new(OnEmpty::Ask).await;
    world.wait_for_first_lives().await;
    assert_eq!(world.exhaust("us-east", 100).await, 100);
    for region in ["ap-south", "eu-west", "us-east"] {
        assert_eq!(world.ask(region).await, Some(false), "{region}");
        eventually("all usage is known everywhere", async || {
            world.usage(region).await.admitted == 100
        })
        .await;
    }
    world.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_of_all_regions_is_merged_to_the_same_total() {
    let world = World::new(OnEmpty::Ask).await;
    world.wait_for_first_lives().await;
    let mut admitted = 0;
    for _ in 0..20 {
        for region in ["ap-south", "eu-west", "us-east"] {
            admitted += u64::from(world.ask(region).await == Some(true));
        }
    }
    assert_eq!(admitted, 60);
    for region in ["ap-south", "eu-west", "us-east"] {
        eventually("all usage is known everywhere", async || {
            world.usage(region).await.admitted == admitted
        })
        .await;
    }
    world.shut_down().await;
}

/// What ap-south keeps for itself is 34 units; a last one of the other's floor waits for a word from ap-south, too.
const WITHOUT_AP: std::ops::RangeInclusive<u64> = 65..=66;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_is_down_does_not_stop_the_other_two() {
    let mut world = World::new(OnEmpty::Ask).await;
    world.wait_for_first_lives().await;
    let down = world.nodes.remove(&Region::new("ap-south")).unwrap();
    down.shutdown.cancel();
    down.driver.await.unwrap();
    down.server.await.unwrap();
    let admitted = world.exhaust("us-east", *WITHOUT_AP.start()).await;
    assert!(WITHOUT_AP.contains(&admitted), "{admitted}");
    eventually("the one that is down is reported", async || {
        !world.node("us-east").reaches("ap-south") && world.node("us-east").reaches("eu-west")
    })
    .await;
    world.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_delays_nobody_and_is_got_over_when_it_closes() {
    let world = World::new(OnEmpty::Ask).await;
    world.wait_for_first_lives().await;
    world.set_reachable("ap-south", false);
    let began = Instant::now();
    let mut admitted = world.exhaust("us-east", *WITHOUT_AP.start()).await;
    assert!(WITHOUT_AP.contains(&admitted), "{admitted}");
    let took = began.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "{took:?} until eu-west's rights had come, with calls to ap-south in the air"
    );
    eventually("the silence is noticed", async || {
        !world.node("us-east").reaches("ap-south") && !world.node("ap-south").reaches("us-east")
    })
    .await;
    world.set_reachable("ap-south", true);
    eventually("the regions find each other again", async || {
        world.node("us-east").reaches("ap-south") && world.node("ap-south").reaches("us-east")
    })
    .await;
    admitted += world.exhaust("us-east", 100 - admitted).await;
    assert_eq!(admitted, 100);
    for region in ["ap-south", "eu-west", "us-east"] {
        eventually("all usage is known everywhere", async || {
            world.usage(region).await.admitted == 100
        })
        .await;
    }
    world.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_is_quick_even_with_calls_in_the_air() {
    let world = World::new(OnEmpty::New).await;
    eventually("they have met", async || {
        world.node("us-east").reaches("ap-south")
    })
    .await;
    world.set_reachable("ap-south", false);
    world.exhaust("us-east", 1).await;
    timeout(Duration::from_secs(1), world.shut_down())
        .await
        .expect("all drivers and servers end within a second");
}
