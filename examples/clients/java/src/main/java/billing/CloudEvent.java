package billing;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;

import static java.nio.charset.StandardCharsets.UTF_8;

/** A CloudEvent in JSON that is the whole body of a delivery. */
record CloudEvent(Map<String, String> attributes, Map<String, String> headers, byte[] payload) {
    /** Reads one value, and refuses text behind it. */
    static final ObjectMapper JSON =
            new ObjectMapper().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

    /** Whether a content type is that of a whole event. */
    static boolean isEvent(String contentType) {
        return essence(contentType).equalsIgnoreCase("application/cloudevents+json");
    }

    /** Opens a body. Fails if it is no event, or says something twice. */
    static CloudEvent open(byte[] body) throws IOException {
        Map<String, String> written = members(UTF_8.newDecoder().decode(ByteBuffer.wrap(body)).toString());
        String data = written.remove("data");
        String encoded = written.remove("data_base64");
        Map<String, String> attributes = new TreeMap<>();
        for (Map.Entry<String, String> member : written.entrySet()) {
            if ("n{[".indexOf(member.getValue().charAt(0)) < 0) { // Null, objects and arrays are no attributes.
                attributes.put(Message.clean(member.getKey()), Message.clean(text(member.getValue())));
            }
        }
        if (!attributes.getOrDefault("specversion", "").startsWith("1.")) {
            throw new IOException("the body is no CloudEvent 1.0");
        }
        if (data != null && encoded != null) {
            throw new IOException("the event has both data and data_base64");
        }
        String headers = attributes.remove("headers");
        Map<String, String> free = headers == null ? Map.of() : freeHeaders(headers);
        if (data != null) {
            attributes.putIfAbsent("datacontenttype", "application/json");
        }
        return new CloudEvent(attributes, free, decoded(data, encoded, attributes.get("datacontenttype")));
    }

    private static byte[] decoded(String data, String encoded, String contentType) throws IOException {
        if (encoded != null) {
            String text = encoded.startsWith("\"") ? text(encoded) : "no text";
            byte[] payload = Base64.getDecoder().decode(text);
            if (!Base64.getEncoder().encodeToString(payload).equals(text)) {
                throw new IOException("data_base64 is no Base64");
            }
            return payload;
        }
        if (data == null) {
            return new byte[0];
        }
        String essence = essence(contentType);
        boolean isJson = essence.endsWith("/json") || essence.endsWith("+json");
        return (isJson ? data : text(data)).getBytes(UTF_8); // With another type, a string stands for its text.
    }

    private static String essence(String contentType) {
        return contentType.split(";", 2)[0].strip();
    }

    /** Returns the text of a string in JSON, and anything else as it is written. */
    private static String text(String value) throws JsonProcessingException {
        return value.startsWith("\"") ? JSON.readTree(value).textValue() : value;
    }

    /** Reads the attribute headers of the relay. That of another producer is a header. */
    private static Map<String, String> freeHeaders(String text) {
        Map<String, String> headers = new TreeMap<>();
        try {
            JsonNode found = JSON.readTree(text);
            for (Map.Entry<String, JsonNode> member : found.properties()) {
                headers.put(Message.clean(member.getKey()), Message.clean(member.getValue().asText()));
            }
            if (found.isObject() && found.properties().stream().allMatch(it -> it.getValue().isTextual())) {
                return headers;
            }
        } catch (JsonProcessingException error) {
            // It is no JSON.
        }
        return Map.of("headers", text);
    }

    /** Returns the members of an object as they are written: an inbox compares payloads by their bytes. */
    private static Map<String, String> members(String text) throws IOException {
        if (!JSON.readTree(text).isObject()) {
            throw new IOException("the body is no JSON object");
        }
        Map<String, String> found = new TreeMap<>();
        String name = null;
        int depth = 0;
        int begin = 0;
        for (int at = 0; at < text.length(); at++) {
            char mark = text.charAt(at);
            if (mark == '"') {
                int start = at;
                for (at++; text.charAt(at) != '"'; at++) {
                    if (text.charAt(at) == '\\') {
                        at++;
                    }
                }
                if (depth == 1 && name == null) {
                    name = text(text.substring(start, at + 1));
                }
            } else if (mark == ':' && depth == 1) {
                begin = at + 1;
            } else {
                depth += mark == '{' || mark == '[' ? 1 : mark == '}' || mark == ']' ? -1 : 0;
                if (name != null && (depth == 0 || depth == 1 && mark == ',')) {
                    if (found.put(name, text.substring(begin, at).strip()) != null) {
                        throw new IOException("a member of the event occurs twice");
                    }
                    name = null;
                }
            }
        }
        return found;
    }
}
