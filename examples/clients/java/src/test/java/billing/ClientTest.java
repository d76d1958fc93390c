package billing;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.rabbitmq.client.AMQP.BasicProperties;
import java.io.File;
import java.sql.Connection;
import java.sql.DriverManager;
import java.time.LocalDate;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.junit.jupiter.api.Test;

/** What both clients keep, on the database of DATABASE_URL. */
abstract class ClientTest {
    static final String URL = Guard.jdbcUrl(System.getenv("DATABASE_URL"));

    private static final String ASK =
            "INSERT INTO inbox_audit (actor, note, action, dead_letter, consumer) VALUES ('ann', '', 'redrive', ?::uuid, ?)";

    private static long last = System.currentTimeMillis() * 1000;

    /** What a handler does; each client runs it with its own kind of transaction. */
    enum Behaviour {
        BILL,
        FAIL,
        REJECT,
        SWALLOW,
        KILL,
        /** Loses its session as the limit of {@link Guard#IDLE} ends it, if that is one minute. */
        HANG,
        /** The ways to end the transaction: each client has its own {@link #ROLL_BACK}. */
        ROLL_BACK,
        ROLL_BACK_IN_SQL,
        COMMIT
    }

    private static final Behaviour[] ROLLBACKS = {Behaviour.ROLL_BACK, Behaviour.ROLL_BACK_IN_SQL};

    abstract String consumer();

    abstract Guard guard(Behaviour behaviour) throws Exception;

    abstract void place(long order, boolean fails) throws Exception;

    /** Returns a number that no other test has used. */
    static synchronized long order() {
        return last += 1;
    }

    static Object query(String sql, Object... values) throws Exception {
        try (Connection connection = DriverManager.getConnection(URL)) {
            return JdbcBilling.one(connection, sql, values);
        }
    }

    static void kill(Object process) throws Exception {
        query("SELECT pg_terminate_backend(?, 10000)", process);
    }

    /** Waits until a session has ended. */
    static void await(Object process) throws Exception {
        while (query("SELECT pid FROM pg_stat_activity WHERE pid = ?", process) != null) {
            Thread.sleep(10);
        }
    }

    String apply(Message message) throws Exception {
        return apply(message, Behaviour.BILL);
    }

    String apply(Message message, Behaviour behaviour) throws Exception {
        Guard guard = guard(behaviour);
        assertNull(guard.maintain(LocalDate.now(ZoneOffset.UTC)));
        return guard.apply(message);
    }

    static Message placed(long number, String customer) {
        String payload = "{\"order\":" + number + ",\"customer\":\"" + customer + "\",\"cents\":1250}";
        UUID id = Message.derivedId(System.currentTimeMillis(), "order-" + number);
        return changed(id, payload, customer);
    }

    static Message changed(UUID id, String payload, String customer) {
        return ofKind("order.placed", id, payload, customer);
    }

    static Message ofKind(String kind, UUID id, String payload, String customer) {
        String type = "application/json";
        return new Message("orders", payload.getBytes(), id, kind, type, customer, "/orders", null, Map.of(), "");
    }

    static long invoices(long number) throws Exception {
        return (Long) query("SELECT count(*) FROM invoice WHERE order_id = ?", number);
    }

    static long messages(String topic, long number) throws Exception {
        String count =
                "SELECT count(*) FROM outbox_message WHERE topic = ? AND convert_from(payload, 'UTF8')::jsonb ->> 'order' = ?";
        return (Long) query(count, topic, String.valueOf(number));
    }

    String letter(Message message, String column) throws Exception {
        String find =
                "SELECT to_jsonb(d) ->> ? FROM inbox_dead_letter AS d WHERE consumer = ? AND message_id = ?";
        return (String) query(find, column, consumer(), message.id());
    }

    @Test
    void anEnqueueCommitsWithItsTransaction() throws Exception {
        long kept = order();
        long lost = order();
        place(kept, false);
        assertThrows(Exception.class, () -> place(lost, true));
        assertEquals(1, messages("orders", kept));
        assertEquals(0, messages("orders", lost));
        assertNull(query("SELECT id FROM orders WHERE id = ?", lost));
    }

    @Test
    void aRedeliveryHasOneEffect() throws Exception {
        long number = order();
        Message message = placed(number, "ann");
        assertEquals("new", apply(message));
        assertEquals("duplicate", apply(message));
        assertEquals(1, invoices(number));
        assertEquals(1, messages("invoices", number));
    }

    @Test
    void aHandlerThatIsKilledLeavesNothing() throws Exception {
        long number = order();
        Message message = placed(number, "ann");
        Exception lost = assertThrows(Exception.class, () -> apply(message, Behaviour.KILL));
        assertTrue(Guard.isLost(lost), () -> lost.toString());
        assertEquals(0, invoices(number));
        assertEquals("new", apply(message));
        assertEquals(1, invoices(number));
    }

    @Test
    void aSwallowedErrorIsAFailure() throws Exception {
        Message message = placed(order(), "ann");
        assertEquals("again", apply(message, Behaviour.SWALLOW));
        assertEquals("new", apply(message));
    }

    String failure(Message message) throws Exception {
        String failed = "SELECT last_error FROM inbox_attempt WHERE consumer = ? AND message_id = ?";
        return (String) query(failed, consumer(), message.id());
    }

    @Test
    void aTransactionThatAHandlerEndsIsAFailure() throws Exception {
        for (Behaviour end : ROLLBACKS) {
            long number = order();
            Message message = placed(number, "ann");
            assertEquals("again", apply(message, end));
            assertTrue(failure(message).toLowerCase().contains("to undo an effect"), failure(message));
            assertEquals(0, invoices(number));
            assertEquals("new", apply(message));
            assertEquals(1, invoices(number));
        }
        Message message = placed(order(), "ann");
        for (int attempt = 1; attempt < Guard.ATTEMPTS_MAX; attempt++) {
            assertEquals("again", apply(message, Behaviour.ROLL_BACK));
        }
        assertEquals("poison", apply(message, Behaviour.ROLL_BACK));

        // What it has committed has taken effect, and nothing more of the message will.
        long number = order();
        Message committed = placed(number, "ann");
        assertEquals("again", apply(committed, Behaviour.COMMIT));
        assertTrue(failure(committed).contains("leaves COMMIT to its caller"), failure(committed));
        assertEquals("duplicate", apply(committed));
        assertEquals(1, invoices(number));
    }

    @Test
    void aRedriveWhoseHandlerEndsItsTransactionFails() throws Exception {
        long number = order();
        Message message = placed(number, "ann");
        assertEquals("rejected", apply(message, Behaviour.REJECT));
        for (Behaviour end : ROLLBACKS) {
            query(ASK, letter(message, "id"), consumer());
            assertTrue(guard(end).redrive());
            String outcome = "SELECT outcome FROM inbox_audit WHERE dead_letter = ?::uuid ORDER BY seq DESC LIMIT 1";
            String found = query(outcome, letter(message, "id")).toString();
            assertTrue(found.toLowerCase().contains("to undo an effect"), found);
            assertNull(letter(message, "resolution"));
            assertEquals(0, invoices(number));
        }
        query(ASK, letter(message, "id"), consumer());
        assertTrue(guard(Behaviour.BILL).redrive());
        assertEquals(1, invoices(number));
    }

    @Test
    void aHandlerThatHangsLosesItsSession() throws Exception {
        long number = order();
        Message message = placed(number, "ann");
        Message other = placed(order(), "ann");
        assertEquals("rejected", apply(other, Behaviour.REJECT));
        query(ASK, letter(other, "id"), consumer());
        Exception lost = assertThrows(Exception.class, () -> apply(message, Behaviour.HANG));
        assertTrue(Guard.isLost(lost), () -> lost.toString());
        assertTrue(Guard.isLost(assertThrows(Exception.class, guard(Behaviour.HANG)::redrive)));
        assertNull(failure(message), "it is not the message's failure");
        assertEquals("new", apply(message));
        assertTrue(guard(Behaviour.BILL).redrive());
        assertEquals(1, invoices(number));
    }

    @Test
    void aHandlerThatAlwaysFailsBecomesADeadLetter() throws Exception {
        Message message = placed(order(), "ann");
        for (int attempt = 1; attempt < Guard.ATTEMPTS_MAX; attempt++) {
            assertEquals("again", apply(message, Behaviour.FAIL));
        }
        assertEquals("poison", apply(message, Behaviour.FAIL));
        assertEquals("dead_letter", apply(message, Behaviour.FAIL));
        assertEquals("poison", letter(message, "reason"));
        assertEquals(String.valueOf(Guard.ATTEMPTS_MAX), letter(message, "attempts"));
        assertEquals("ann", letter(message, "key"));
        assertTrue(letter(message, "error").contains("the printer burns"));
    }

    @Test
    void aRefusedMessageBecomesADeadLetter() throws Exception {
        Message message = placed(order(), "ann");
        assertEquals("new", apply(message));
        assertEquals("key_reused", apply(changed(message.id(), "{}", "ann")));
        assertEquals("key_reused", letter(message, "reason"));
        assertEquals("too_old", apply(changed(Message.derivedId(1_000, "old"), "{}", "ann")));
        String payload = "{\"order\":" + order() + ",\"customer\":\"ann\",\"cents\":1250}";
        UUID id = Message.derivedId(System.currentTimeMillis(), payload);
        // A topic may have several kinds.
        assertEquals("rejected", apply(ofKind("order.cancelled", id, payload, "ann")));
        var properties = new BasicProperties.Builder().headers(Map.of("cloudEvents_chunkindex", "0"));
        assertEquals("malformed", apply(Message.read("orders", properties.build(), new byte[1])));
    }

    @Test
    void whatAPeerWritesDoesNotStopTheConsumer() throws Exception {
        StringBuilder key = new StringBuilder(); // No index of PostgreSQL takes it, even compressed.
        for (int at = 0; at < 5_000; at++) {
            key.append((char) (0x4e00 + at * 7919 % 20_000));
        }
        var parts = Map.of("cloudEvents_time", "yesterday", "cloudEvents_subject", key.toString(), "na\0me", "a\0b");
        String stored =
                "SELECT count(*) FROM inbox_dead_letter WHERE consumer = ? AND error LIKE 'no such\ufffdcustomer%'";
        long before = (Long) query(stored, consumer());
        for (var part : parts.entrySet()) {
            String id = placed(order(), "ann").id().toString();
            Map<String, Object> headers = Map.of("cloudEvents_id", id, part.getKey(), part.getValue());
            var properties = new BasicProperties.Builder().headers(headers).build();
            assertEquals("rejected", apply(Message.read("orders", properties, new byte[0]), Behaviour.REJECT));
        }
        assertEquals(before + parts.size(), query(stored, consumer()));
        assertEquals("new", apply(placed(order(), "ann")));
    }

    @Test
    void aRedriveTakesEffectOnce() throws Exception {
        long number = order();
        Message message = placed(number, "customer-" + number);
        Guard guard = guard(Behaviour.BILL);
        query("INSERT INTO blocked_customer VALUES (?)", message.key());
        assertEquals("rejected", apply(message));
        query(ASK, letter(message, "id"), consumer());
        assertTrue(guard.redrive());
        assertNull(letter(message, "resolution"));
        query("DELETE FROM blocked_customer WHERE name = ?", message.key());
        query(ASK, letter(message, "id"), consumer());
        assertTrue(guard.redrive());
        assertFalse(guard.redrive());
        assertEquals("applied", letter(message, "resolution"));
        assertEquals("duplicate", apply(message));
        assertEquals(1, invoices(number));
        Message old = changed(Message.derivedId(1_000, "old"), "{}", "ann");
        assertEquals("too_old", apply(old));
        query(ASK, letter(old, "id"), consumer());
        assertTrue(guard.redrive());
        String outcome = "SELECT outcome FROM inbox_audit WHERE dead_letter = ?::uuid ORDER BY seq DESC LIMIT 1";
        assertEquals("it is refused: too_old", query(outcome, letter(old, "id")));
        assertFalse(guard.redrive());
    }

    @Test
    void aRedriveThatEndsItsProcessIsGivenUp() throws Exception {
        Message message = placed(order(), "ann");
        assertEquals("rejected", apply(message, Behaviour.REJECT));
        query(ASK, letter(message, "id"), consumer());
        for (int process = 1; process <= 5; process++) {
            Guard doomed = guard(Behaviour.KILL);
            assertTrue(Guard.isLost(assertThrows(Exception.class, doomed::redrive)));
        }
        assertFalse(guard(Behaviour.BILL).redrive(), "the next process goes on");
        String outcome = "SELECT outcome FROM inbox_audit WHERE dead_letter = ?::uuid";
        assertTrue(query(outcome, letter(message, "id")).toString().startsWith("five processes ended"));
        assertNull(letter(message, "resolution"));
        query(ASK, letter(message, "id"), consumer());
        assertTrue(guard(Behaviour.BILL).redrive(), "an operator may ask again");
        assertEquals("applied", letter(message, "resolution"));
    }

    @Test
    void theSharedVectorsHold() throws Exception {
        JsonNode vectors = JdbcBilling.JSON.readTree(new File("../vectors.json"));
        for (JsonNode it : vectors.get("derived_ids")) {
            String[] parts = JdbcBilling.JSON.treeToValue(it.get("parts"), String[].class);
            UUID id = Message.derivedId(it.get("milliseconds").asLong(), parts);
            assertEquals(it.get("id").asText(), id.toString());
        }
        for (JsonNode it : vectors.get("fingerprints")) {
            byte[] payload = it.get("payload_base64").binaryValue();
            String kind = it.get("kind").asText();
            Object print = query("SELECT encode(inbox_fingerprint(?, ?, ?), 'hex')", kind,
                    it.get("content_type").asText(), payload);
            assertEquals(it.get("sha256").asText(), print);
        }
        JsonNode ids = vectors.get("message_ids");
        for (JsonNode it : ids.get("accepted")) {
            UUID canonical = UUID.fromString(it.get("canonical").asText());
            assertEquals(Arrays.asList(canonical, canonical), spelled(it.get("id").asText()));
        }
        for (JsonNode it : ids.get("not_ids")) {
            assertEquals(Arrays.asList(null, null), spelled(it.get("id").asText()), it.get("why").asText());
        }
        for (JsonNode it : ids.get("refused")) {
            UUID id = UUID.fromString(it.get("id").asText());
            assertEquals("malformed", apply(changed(id, "{}", "ann")));
        }
        for (JsonNode it : vectors.get("wires")) {
            JsonNode sent = it.get("message");
            JsonNode form = it.get("rabbitmq");
            byte[] payload = sent.get("payload_base64").binaryValue();
            Message found = Message.read(form.get("routing_key").asText(), properties(form), payload);
            if (sent.has("chunk")) {
                assertTrue(found.problem().contains("chunk"));
                continue;
            }
            assertEquals(sent.get("id").asText(), found.id().toString());
            assertEquals(sent.get("kind").asText(), found.kind());
            assertEquals(sent.get("topic").asText(), found.topic());
            assertEquals(sent.get("key").textValue(), found.key());
            assertEquals(sent.get("source").asText(), found.source());
            assertEquals(sent.get("time").asText(), found.madeAt());
            Map<String, Object> expected = texts(sent.get("headers"));
            for (String name : new String[] {"traceparent", "tracestate"}) {
                if (!sent.get(name).isNull()) {
                    expected.put(name, sent.get(name).asText());
                }
            }
            assertEquals(expected, found.headers());
        }
        assertTrue(vectors.get("deliveries").size() > 30);
        for (JsonNode it : vectors.get("deliveries")) {
            JsonNode form = it.get("rabbitmq");
            JsonNode sent = it.get("message");
            String why = it.get("why").asText();
            byte[] body = form.get("body").asText().getBytes(UTF_8);
            Message found = Message.read(form.get("routing_key").asText(), properties(form), body);
            if (sent.isNull()) {
                assertNull(found.id(), why);
                assertFalse(found.problem().isEmpty(), why);
                assertArrayEquals(body, found.payload(), why);
                continue;
            }
            assertEquals(sent.get("id").asText(), String.valueOf(found.id()), why);
            assertEquals(sent.get("kind").asText(), found.kind(), why);
            assertEquals(sent.get("key").textValue(), found.key(), why);
            assertEquals(sent.get("source").asText(), found.source(), why);
            assertEquals(sent.get("content_type").asText(), found.contentType(), why);
            assertEquals(texts(sent.get("headers")), found.headers(), why);
            assertArrayEquals(sent.get("payload_base64").binaryValue(), found.payload(), why);
        }
        assertTrue(vectors.get("no_orders").size() > 10);
        for (JsonNode it : vectors.get("no_orders")) {
            Message message = changed(placed(order(), "ann").id(), it.get("payload").asText(), "ann");
            assertEquals("rejected", apply(message), it.get("why").asText());
            assertTrue(letter(message, "error").startsWith("the payload is no order"), letter(message, "error"));
        }
        byte[] payload = String.valueOf(order()).getBytes();
        for (JsonNode it : vectors.get("unreadable")) {
            JsonNode form = it.get("rabbitmq");
            Message found = Message.read(form.get("routing_key").asText(), properties(form), payload);
            assertNull(found.id());
            assertEquals(texts(it.get("dead_letter_headers")), found.headers(), it.get("why").asText());
            assertEquals("malformed", apply(found));
            assertEquals("malformed", apply(found));
        }
        assertTrue(vectors.get("unreadable").size() > 5);
        String count = "SELECT count(*) FROM inbox_dead_letter WHERE consumer = ? AND payload = ?";
        assertEquals((long) vectors.get("unreadable").size(), query(count, consumer(), payload));
    }

    /** Returns what is read of an id in a header, and in the property. */
    private static List<UUID> spelled(String id) {
        var header = new BasicProperties.Builder().headers(Map.of("cloudEvents_id", id)).build();
        var property = new BasicProperties.Builder().messageId(id).build();
        byte[] body = new byte[0];
        return Arrays.asList(
                Message.read("orders", header, body).id(), Message.read("orders", property, body).id());
    }

    private static BasicProperties properties(JsonNode form) {
        return new BasicProperties.Builder()
                .headers(texts(form.get("headers")))
                .messageId(form.path("message_id").textValue())
                .contentType(form.path("content_type").textValue())
                .type(form.path("type").textValue())
                .build();
    }

    private static Map<String, Object> texts(JsonNode object) {
        Map<String, Object> texts = new HashMap<>();
        object.properties().forEach(member -> texts.put(member.getKey(), member.getValue().asText()));
        return texts;
    }
}
