//! The network between regions: it delays, loses, doubles and reorders, and links are cut, one way or both.

use super::*;

/// The longest that a message is on its way.
const LATE_MS: u64 = 40_000;

impl World {
    pub(super) fn transmit(
        &mut self,
        node: usize,
        generation: u32,
        to: &Region,
        message: Box<Message>,
        answer: bool,
    ) {
        let Some(target) = self.shops.iter().position(|s| s.region == *to) else {
            return;
        };
        self.note_message(&message);
        let double = self.faulty() && self.rng.random_ratio(self.setup.faults.double, 1000);
        let mut copies = vec![message; if double { 2 } else { 1 }];
        while let Some(message) = copies.pop() {
            let event = Event::Deliver {
                to: to.clone(),
                from: node,
                generation,
                message,
                answer,
            };
            self.travel(self.shop_of(node), target, event);
        }
    }

    /// The answer comes back over the asker's own connection.
    pub(super) fn answer(&mut self, node: usize, token: u64, message: Box<Message>) {
        let Some((asker, generation)) = self.waiting.remove(&token) else {
            return;
        };
        self.note_message(&message);
        let (from, to) = (self.shop_of(node), self.shop_of(asker));
        let event = Event::Deliver {
            to: self.shops[to].region.clone(),
            from: asker,
            generation,
            message,
            answer: true,
        };
        self.travel(from, to, event);
    }

    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        let until = self.cuts.get(&(from, to));
        until.is_some_and(|until| *until > self.now)
    }

    fn travel(&mut self, from: usize, to: usize, event: Event) {
        let faults = self.setup.faults;
        let faulty = self.faulty();
        if self.is_cut(from, to) || (faulty && self.rng.random_ratio(faults.lose, 1000)) {
            return;
        }
        let (least, most) = self.setup.delay_ms;
        let mut delay = self.rng.random_range(least..=most);
        if faulty && self.rng.random_ratio(faults.late, 1000) {
            // By half of them a loan that they speak of is over, and its margin too.
            let least = if self.rng.random_ratio(1, 2) {
                0
            } else {
                LATE_MS * 2 / 3
            };
            delay += self.rng.random_range(least..LATE_MS);
        }
        if let Event::Deliver { message, .. } = &event
            && self.tell.0.is_some()
            && !message.trade.is_empty()
        {
            let trade = format!("{:?}", message.trade);
            self.tell(|_| format!("from {from} to {to} in {delay} ms: {trade}"));
        }
        self.at(self.now + delay, event);
    }

    pub(super) fn deliver(
        &mut self,
        to: &Region,
        from: usize,
        generation: u32,
        message: Box<Message>,
        answer: bool,
    ) {
        if answer {
            let token = None;
            self.step(from, generation, Input::Message { message, token });
            return;
        }
        let Some(target) = self.shops.iter().position(|s| s.region == *to) else {
            return;
        };
        let node = target * self.setup.nodes + self.rng.random_range(0..self.setup.nodes);
        self.next_token += 1;
        let token = self.next_token;
        self.waiting.insert(token, (from, generation));
        let generation = self.nodes[node].generation;
        let token = Some(token);
        self.step(node, generation, Input::Message { message, token });
    }
}
